"""Aggregate nested spans into the tables that most answers need: steps, requests, turns, barriers, paths."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import polars as pl

from sglang_instrument.analysis.digests.rollups import PLACE as PLACE
from sglang_instrument.analysis.digests.rollups import roll_up
from sglang_instrument.analysis.digests.turns import KINDS as KINDS
from sglang_instrument.analysis.timing.critical_path import critical_path
from sglang_instrument.analysis.timing.group_ids import assign_group_ids
from sglang_instrument.analysis.timing.nesting import nest_and_clip
from sglang_instrument.analysis.timing.wall_time import split_wall_time
from sglang_instrument.schema import PHASES

_PLACE_SCHEMA: Final = {
    "source": pl.Int64,
    "role": pl.String,
    "worker": pl.Int64,
    "step": pl.Int64,
    "validate": pl.Boolean,
}
#: The tables and their columns. Times are microseconds on the clock of the worker's host. `event` of a turn
#: is its longest part. `attempt` counts the requests of one id in a step of a worker, from 0: a retry. What
#: is `unended` lasts until its process last said that it goes on; the error of a request is then
#: `last_open.UNENDED`.
#: A request is `implied` if no span of phase "request" tells of it, only its id.
#: `samples` is `samples.sample_rows`. The path has by far the most rows, so that its texts are categories:
#: `with_texts`. `launch` of a step numbers the launch of the
#: trainer that wrote it; null if not known.
SCHEMAS: Final[dict[str, dict[str, Any]]] = {
    "steps": {
        **_PLACE_SCHEMA,
        "start_us": pl.Int64,
        "end_us": pl.Int64,
        "duration_sec": pl.Float64,
        "unaccounted_sec": pl.Float64,
        "barrier_sec": pl.Float64,
        "launch": pl.Int64,
        "unended": pl.Boolean,
        **{f"wall_{phase}": pl.Float64 for phase in PHASES},
    },
    "requests": {
        **_PLACE_SCHEMA,
        "request_id": pl.String,
        "attempt": pl.Int64,
        "start_us": pl.Int64,
        "end_us": pl.Int64,
        "duration_sec": pl.Float64,
        "turns": pl.Int64,
        "response_tokens": pl.Int64,
        "finish_reason": pl.String,
        "reward": pl.Float64,
        "error": pl.String,
        "weight_version": pl.Int64,
        "first_weight_version": pl.Int64,
        "group": pl.String,
        "sample": pl.String,
        "resumed_tokens": pl.Int64,
        "agent": pl.String,
        "parent_request": pl.String,
        "implied": pl.Boolean,
        **{f"{kind}_sec": pl.Float64 for kind in KINDS},
    },
    "turns": {
        **_PLACE_SCHEMA,
        "request_id": pl.String,
        "attempt": pl.Int64,
        "turn": pl.Int64,
        "event": pl.String,
        "start_us": pl.Int64,
        "end_us": pl.Int64,
        "response_tokens": pl.Int64,
        "weight_version": pl.Int64,
        "verifications": pl.Int64,
        "unended": pl.Boolean,
        **{f"{kind}_sec": pl.Float64 for kind in KINDS},
    },
    "samples": {
        **_PLACE_SCHEMA,
        "event": pl.String,
        "at_us": pl.Int64,
        "sample": pl.String,
        "group": pl.String,
        "weight_version": pl.Int64,
        "max_staleness": pl.Int64,
        "reason": pl.String,
        "tokens": pl.Int64,
        "count": pl.Int64,
    },
    "barriers": {
        **_PLACE_SCHEMA,
        "event": pl.String,
        "start_us": pl.Int64,
        "end_us": pl.Int64,
    },
    "path": {
        **_PLACE_SCHEMA,
        "role": pl.Categorical,
        "request_id": pl.Categorical,
        "turn": pl.Int64,
        "event": pl.Categorical,
        "phase": pl.Categorical,
        "start_us": pl.Int64,
        "end_us": pl.Int64,
        "contains": pl.Boolean,
        "blocked_sec": pl.Float64,
    },
}
# Columns that nesting needs; the others are looked up later, for requests and their parts only.
_NESTING_COLUMNS: Final = (
    *("source", "step", "validate", "event", "phase", "start_us", "end_us", "duration_sec"),
    *("task", "spawned_by", "exact"),
)


@dataclass(frozen=True, eq=False)
class Digest:
    """Steps, requests, turns, samples, barriers of a run, a table each (`SCHEMAS`): what most answers need.

    `path` has the critical path of each step of a worker, cut into pieces as `critical_path` describes them.
    """

    steps: pl.DataFrame
    requests: pl.DataFrame
    turns: pl.DataFrame
    samples: pl.DataFrame
    barriers: pl.DataFrame
    path: pl.DataFrame

    @classmethod
    def of(cls, spans: pl.DataFrame) -> "Digest":
        """Aggregate nested spans with `steps_sec`; some rows of the run may be missing."""
        place, places = assign_group_ids(spans, PLACE)
        rows = _renumbered(spans).with_columns(place=place).with_row_index("row")
        return cls._fitted(roll_up(rows, spans, places, critical_path(rows)))

    @classmethod
    def _fitted(cls, tables: dict[str, pl.DataFrame]) -> "Digest":
        return cls(
            **{
                name: tables[name].select(pl.col(column).cast(kind) for column, kind in schema.items())
                for name, schema in SCHEMAS.items()
            }
        )

    def tables(self) -> dict[str, pl.DataFrame]:
        """Return the tables by name."""
        return {name: getattr(self, name) for name in SCHEMAS}

    def filter(self, condition: pl.Expr) -> "Digest":
        """Return the rows of all tables that meet a condition on the columns of `PLACE`."""
        return Digest(**{name: _rows_where(table, condition) for name, table in self.tables().items()})

    def of_workers(self) -> "Digest":
        """Return the rows of rollout workers; of training or validations that no worker wrote, all rows."""
        return self._of_workers

    @cached_property
    def _of_workers(self) -> "Digest":
        kinds = self.steps.filter(role="worker")["validate"].unique().to_list()
        return self.filter((pl.col("role") == "worker") | ~pl.col("validate").is_in(kinds)) if kinds else self


def with_texts(rows: pl.DataFrame) -> pl.DataFrame:
    """Return rows with their categories as text."""
    return rows.with_columns(pl.col(pl.Categorical).cast(pl.String))


def _rows_where(table: pl.DataFrame, condition: pl.Expr) -> pl.DataFrame:
    """Return the rows that meet a condition; where all do, the table itself and no copy."""
    is_met = table.select(condition).to_series()
    return table if is_met.all(ignore_nulls=False) else table.filter(is_met)


def digest_records(records: pl.DataFrame) -> Digest:
    """Nest records and aggregate them."""
    place, places = assign_group_ids(records, PLACE)
    ids = ["request_id"] if records["task"].null_count() else []
    spans_in = records.select(*_NESTING_COLUMNS, *ids, place=place).with_row_index("row")
    spans, children = nest_and_clip(spans_in)
    spans = split_wall_time(spans, children)
    records = records.with_columns(place=place)
    return Digest._fitted(roll_up(spans, records, places, critical_path(spans, children)))


def fitted_table(name: str, stored: pl.DataFrame | None) -> pl.DataFrame:
    """Return a table of another version with the columns of today's; None stands for none."""
    stored = pl.DataFrame(schema=SCHEMAS[name]) if stored is None else stored
    return stored.select(
        (pl.col(column) if column in stored.columns else _lacking(column)).cast(kind)
        for column, kind in SCHEMAS[name].items()
    )


def _lacking(column: str) -> pl.Expr:
    """Return a column that another version lacks.

    A phase that it did not know took no time of its own; it had one row for all requests of an id.
    """
    zero = 0.0 if column.startswith("wall_") else 0 if column == "attempt" else None
    return pl.lit(zero).alias(column)


def concat_digests(digests: list[Digest]) -> Digest:
    """Concatenate digests; a table that only one of them has is not copied."""
    return Digest(
        **{name: concat_table(name, [digest.tables()[name] for digest in digests]) for name in SCHEMAS}
    )


def concat_table(name: str, tables: list[pl.DataFrame]) -> pl.DataFrame:
    """Return a table of several digests as one; if only one has rows, its table."""
    empty = pl.DataFrame(schema=SCHEMAS[name])
    filled = [table for table in tables if len(table)]
    is_alone = len(filled) == 1 and filled[0].schema == empty.schema
    return filled[0].rechunk() if is_alone else pl.concat([empty, *filled], rechunk=True)


def _renumbered(spans: pl.DataFrame) -> pl.DataFrame:
    """Number spans from 0 again if some are missing."""
    if spans.is_empty() or spans["span"].max() == len(spans) - 1:
        return spans
    new = spans.select(old="span").with_row_index("new").cast(pl.Int64)
    for name in ("span", "parent", "step_span"):
        numbers = spans.select(old=name).join(new, on="old", how="left", maintain_order="left")["new"]
        spans = spans.with_columns(numbers.alias(name))
    return spans
