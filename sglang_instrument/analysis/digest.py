"""Boil nested spans down to what most answers need: steps, requests, turns and barriers."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from sglang_instrument.analysis.nesting import PHASE, nest_with_children
from sglang_instrument.analysis.walls import split_wall
from sglang_instrument.schema import PHASES

#: What every row says of itself. `source` numbers what one run wrote to one file.
PLACE: Final = ("source", "role", "worker", "step", "validate")
_PLACE_SCHEMA: Final = {
    "source": pl.Int64,
    "role": pl.String,
    "worker": pl.Int64,
    "step": pl.Int64,
    "validate": pl.Boolean,
}
#: Kinds of work within a request; a span of a kind that lies in another one of its kind is part of it.
KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    "engine": ("generate", "engine"),
    "tool": ("tool",),
    "interaction": ("interaction",),
    "reward": ("reward",),
}
#: The tables and their columns. Times are microseconds on the clock of the worker's host. The event of a turn
#: is the part of it that took longest.
SCHEMAS: Final[dict[str, dict[str, Any]]] = {
    "steps": {
        **_PLACE_SCHEMA,
        "start_us": pl.Int64,
        "duration_sec": pl.Float64,
        "remainder_sec": pl.Float64,
        "barrier_sec": pl.Float64,
        **{f"wall_{phase}": pl.Float64 for phase in PHASES},
    },
    "requests": {
        **_PLACE_SCHEMA,
        "request_id": pl.String,
        "start_us": pl.Int64,
        "end_us": pl.Int64,
        "duration_sec": pl.Float64,
        "turns": pl.Int64,
        "response_tokens": pl.Int64,
        "finish_reason": pl.String,
        "reward": pl.Float64,
        "error": pl.String,
        **{f"{kind}_sec": pl.Float64 for kind in KINDS},
    },
    "turns": {
        **_PLACE_SCHEMA,
        "request_id": pl.String,
        "turn": pl.Int64,
        "event": pl.String,
        "start_us": pl.Int64,
        "end_us": pl.Int64,
        "response_tokens": pl.Int64,
        **{f"{kind}_sec": pl.Float64 for kind in KINDS},
    },
    "barriers": {
        **_PLACE_SCHEMA,
        "event": pl.String,
        "start_us": pl.Int64,
        "end_us": pl.Int64,
    },
}
_NEEDED: Final = (
    *PLACE,
    *("event", "phase", "start_us", "end_us", "duration_sec", "request_id", "turn", "task", "spawned_by"),
    *("error", "turns", "finish_reason", "response_tokens", "reward", "exact"),
)


@dataclass(frozen=True, eq=False)
class Digest:
    """The tables of `SCHEMAS`; only the records that count are in them."""

    steps: pl.DataFrame
    requests: pl.DataFrame
    turns: pl.DataFrame
    barriers: pl.DataFrame

    @classmethod
    def of(cls, spans: pl.DataFrame, rewards: pl.DataFrame | None = None) -> "Digest":
        """Boil down nested spans with `wall_sec`; `rewards` are records that may hold one by request."""
        spans = spans.filter(pl.col("step").is_not_null())
        parts = _outermost_parts(spans)
        return cls(
            *(
                table.select(pl.col(name).cast(kind) for name, kind in SCHEMAS[of].items())
                for of, table in (
                    ("steps", _steps(spans)),
                    ("requests", _requests(spans, parts, spans if rewards is None else rewards)),
                    ("turns", _turns(parts)),
                    ("barriers", _barriers(spans)),
                )
            )
        )

    def tables(self) -> dict[str, pl.DataFrame]:
        """Return the tables by name."""
        return {name: getattr(self, name) for name in SCHEMAS}

    def filter(self, condition: pl.Expr) -> "Digest":
        """Return the rows of all tables for which a condition on `PLACE` holds."""
        return Digest(**{name: table.filter(condition) for name, table in self.tables().items()})

    def of_workers(self) -> "Digest":
        """Return what rollout workers wrote; all of it, where nobody is a worker."""
        is_worker = pl.col("role") == "worker"
        return self.filter(is_worker) if self.steps.select(is_worker.any()).item() else self


def digest_records(records: pl.DataFrame) -> Digest:
    """Nest records and boil them down."""
    records = records.select(_NEEDED)
    return Digest.of(split_wall(*nest_with_children(records)), records)


def concat_digests(digests: list[Digest]) -> Digest:
    """Put digests one below the other."""
    return Digest(
        **{
            name: pl.concat([pl.DataFrame(schema=schema), *(one.tables()[name] for one in digests)])
            for name, schema in SCHEMAS.items()
        }
    )


def _steps(spans: pl.DataFrame) -> pl.DataFrame:
    """Return the steps of workers.

    A step is its spans of phase "step"; a program without any is measured from its first span to its last
    end.
    """
    key = list(PLACE)
    whole = spans.filter(pl.col("span") == pl.col("step_span"))
    measured = whole.group_by(key).agg(
        start_us=pl.col("start_us").min(),
        duration_sec=pl.col("duration_sec").sum(),
        remainder_sec=pl.col("self_sec").sum(),
    )
    extents = (
        without_parents(spans.join(measured, on=key, how="anti"), key)
        .group_by(key)
        .agg(
            start_us=pl.col("start_us").min(),
            duration_sec=(pl.col("end_us").max() - pl.col("start_us").min()) / 1e6,
            covered_sec=pl.col("fresh_sec").sum(),
        )
        .with_columns(remainder_sec=pl.col("duration_sec") - pl.col("covered_sec"))
        .drop("covered_sec")
    )
    barriers = (
        spans.filter(pl.col("phase").cast(pl.Categorical) == "barrier")
        .group_by(key)
        .agg(barrier_sec=pl.col("wall_sec").sum())
    )
    walls = spans.group_by([*key, "counts_for"]).agg(pl.col("wall_sec").sum())
    shares = walls.group_by(key).agg(
        pl.col("wall_sec").filter(pl.col("counts_for") == phase).sum().alias(f"wall_{phase}")
        for phase in PHASES
    )
    steps = pl.concat([measured, extents]).join(barriers, on=key, how="left").join(shares, on=key, how="left")
    return steps.with_columns(pl.col("barrier_sec").fill_null(0.0)).sort(key)


def without_parents(spans: pl.DataFrame, key: list[str]) -> pl.DataFrame:
    """Return the outermost spans with `fresh_sec`: their time that no earlier one of the step covers."""
    outermost = spans.filter(pl.col("parent").is_null()).sort(*key, "start_us", "end_us")
    reach = pl.col("end_us").cum_max().shift(1).over(key).fill_null(pl.col("start_us"))
    fresh = pl.col("end_us") - pl.max_horizontal(pl.col("start_us"), reach)
    return outermost.with_columns(fresh_sec=fresh.clip(lower_bound=0) / 1e6)


def _outermost_parts(spans: pl.DataFrame) -> pl.DataFrame:
    """Return the spans of `KINDS` that are in no other of their kind, with `kind`, a column of its time."""
    kinds = pl.DataFrame(
        {"counts_for": list(PHASES), "kind": [_kind(phase) for phase in PHASES]},
        schema={"counts_for": PHASE, "kind": pl.Int8},
    )
    kind = spans.select("counts_for").join(kinds, on="counts_for", how="left", maintain_order="left")["kind"]
    working = spans.select("span", kind=kind).filter(pl.col("kind").is_not_null())
    above = spans.select(span="parent").join(working, on="span", how="left", maintain_order="left")["kind"]
    outer = kind.is_not_null() & kind.ne_missing(above)
    return spans.filter(outer).with_columns(kind=kind.filter(outer))


def _kind(phase: str) -> int | None:
    return next((number for number, phases in enumerate(KINDS.values()) if phase in phases), None)


def _times_of_kinds() -> list[pl.Expr]:
    return [
        pl.col("duration_sec").filter(pl.col("kind") == number).sum().alias(f"{kind}_sec")
        for number, kind in enumerate(KINDS)
    ]


def _requests(spans: pl.DataFrame, parts: pl.DataFrame, rewards: pl.DataFrame) -> pl.DataFrame:
    requests = outermost_requests(spans)
    key = ["source", "step", "validate", "request_id"]
    asked = parts.filter(pl.col("request_id").is_not_null())
    requests = requests.join(asked.group_by(key).agg(_times_of_kinds()), on=key, how="left").with_columns(
        pl.col(f"{kind}_sec").fill_null(0.0) for kind in KINDS
    )
    later = rewards.filter(pl.col("reward").is_not_null() & pl.col("request_id").is_not_null())
    if len(later) > requests["reward"].count():
        by_request = later.group_by("step", "validate", "request_id").agg(later=pl.col("reward").last())
        requests = requests.join(by_request, on=["step", "validate", "request_id"], how="left")
        requests = requests.with_columns(reward=pl.coalesce("reward", "later"))
    return requests.sort("source", "step", "start_us", "request_id")


def outermost_requests(spans: pl.DataFrame) -> pl.DataFrame:
    """Return the spans of phase "request" that are not directly inside another one of the same request."""
    requests = spans.filter(pl.col("phase").cast(pl.Categorical) == "request")
    above = requests.select(parent="span", outer_id="request_id")
    inner = requests.join(above, on="parent").filter(pl.col("request_id") == pl.col("outer_id"))
    return requests.join(inner.select("span"), on="span", how="anti")


def _turns(parts: pl.DataFrame) -> pl.DataFrame:
    """Return the turns: each has an engine call, and what follows under other numbers until the next one."""
    known = parts.filter(pl.col("turn").is_not_null() & pl.col("request_id").is_not_null())
    engine = pl.col("kind") == 0
    request = [*PLACE, "request_id"]
    logged = (
        known.group_by([*request, "turn"])
        .agg(
            *_times_of_kinds(),
            event=pl.col("event").get(pl.col("duration_sec").arg_max()),
            longest_sec=pl.col("duration_sec").max(),
            start_us=pl.col("start_us").min(),
            end_us=pl.col("end_us").max(),
            response_tokens=pl.col("response_tokens").filter(engine).max(),
            called=engine.any(),
        )
        .sort("source", "step", "request_id", "turn")
    )
    # An interaction may be logged under the number of the reply that never came.
    logged = logged.with_columns(call=pl.col("called").cum_sum().over(request).clip(lower_bound=1))
    return (
        logged.group_by([*request, "call"], maintain_order=True)
        .agg(
            *(pl.col(f"{kind}_sec").sum() for kind in KINDS),
            turn=pl.col("turn").filter(pl.col("called")).first(),
            event=pl.col("event").get(pl.col("longest_sec").arg_max()),
            start_us=pl.col("start_us").min(),
            end_us=pl.col("end_us").max(),
            response_tokens=pl.col("response_tokens").max(),
        )
        .drop_nulls("turn")
    )


def _barriers(spans: pl.DataFrame) -> pl.DataFrame:
    barriers = spans.filter(pl.col("phase").cast(pl.Categorical) == "barrier")
    above = barriers.select(parent="span")
    return barriers.join(above, on="parent", how="anti").sort("source", "start_us")
