"""Aggregate nested spans into one row per step, request, turn and barrier."""

from typing import Final

import polars as pl

from sglang_instrument.analysis.digests.attempts import (
    parts_with_attempts,
    rewards_with_attempts,
    with_attempts,
)
from sglang_instrument.analysis.digests.implied_requests import with_implied
from sglang_instrument.analysis.digests.samples import sample_rows
from sglang_instrument.analysis.digests.turns import ENGINE, KINDS, REQUEST, sum_by_number, turns_of
from sglang_instrument.analysis.digests.untimed import with_untimed
from sglang_instrument.analysis.digests.weight_versions import VERSIONS, with_versions
from sglang_instrument.analysis.reading.last_open import UNENDED
from sglang_instrument.analysis.timing.grouped_sums import US
from sglang_instrument.schema import PHASES

#: Where a row belongs. `source` numbers each pair of file and run.
PLACE: Final = ("source", "role", "worker", "step", "validate")
_KIND_OF_PHASE: Final = [
    next((number for number, phases in enumerate(KINDS.values()) if phase in phases), None)
    for phase in PHASES
]
#: What the span of a request says of it beside times and tokens.
_LABELS: Final = ("group", "sample", "resumed_tokens", "agent", "parent_request")
_FROM_TURNS: Final = ("turns", "response_tokens", "finish_reason")


def roll_up(
    spans: pl.DataFrame, records: pl.DataFrame, places: pl.DataFrame, path: pl.DataFrame
) -> dict[str, pl.DataFrame]:
    """Return the tables of a digest by name.

    Args:
        spans: Nested spans with `steps_sec`. `span` numbers them from 0, `row` is the row in `records`,
            `place` the row in `places`.
        records: Further columns of the spans, and records that may hold the reward of a request.
        places: Columns of `PLACE`; `place` of records is the row in them.
        path: Of `critical_path`.
    """
    requests = with_attempts(with_implied(_outermost_requests(spans, records), records, places))
    parts = parts_with_attempts(_outermost_parts(spans, records), requests, spans)
    logged = sum_by_number(parts)
    turns = turns_of(logged)
    requests = _requests(requests, logged, records, places)
    tables = {
        "steps": _steps(spans, len(places)),
        "requests": with_versions(_with_facts_of_turns(requests, turns, parts, records), parts),
        "turns": turns,
        "barriers": _barriers(spans, records),
        "path": _path(spans, records, path),
    }
    placed = places.with_row_index("place").cast({"place": pl.Int64}).filter(pl.col("step").is_not_null())
    placed_tables = {
        name: table.join(placed, on="place", maintain_order="left") for name, table in tables.items()
    }
    return {**placed_tables, "samples": sample_rows(records)}


def _steps(spans: pl.DataFrame, places: int) -> pl.DataFrame:
    """Return one row per step and worker.

    The spans of phase "step" make up the step. Without any, the step lasts from its first start to its last
    end.
    """
    whole = spans.filter(pl.col("span") == pl.col("step_span"))
    steps = whole.group_by("place").agg(
        start_us=pl.col("start_us").min(),
        end_us=pl.col("end_us").max(),
        duration_sec=pl.col("duration_sec").sum(),
        unaccounted_sec=pl.col("without_nested_sec").sum(),
    )
    if len(steps) < places:
        steps = pl.concat([steps, _extents(spans.join(steps, on="place", how="anti"))])
    barriers = spans.filter(_is_of("barrier")).group_by("place").agg(barrier_sec=pl.col("steps_sec").sum())
    cell = pl.col("place") * len(PHASES) + pl.col("counts_for").to_physical()
    by_cell = spans.group_by(cell=cell).agg(pl.col("steps_sec").sum())
    phase = pl.col("cell") % len(PHASES)
    shares = by_cell.group_by(place=pl.col("cell") // len(PHASES)).agg(
        pl.col("steps_sec").filter(phase == number).sum().alias(f"wall_{name}")
        for number, name in enumerate(PHASES)
    )
    steps = steps.join(barriers, on="place", how="left").join(shares, on="place", how="left")
    # `digest_of_run.only_newest_runs` fills them in: records tell neither the launch nor the end.
    later = (pl.lit(None, pl.Int64).alias("launch"), pl.lit(None, pl.Boolean).alias("unended"))
    return steps.with_columns(pl.col("barrier_sec").fill_null(0.0), *later).sort("place")


def _extents(spans: pl.DataFrame) -> pl.DataFrame:
    # A span in another task than its parent may outlive it.
    outermost = spans.filter(pl.col("parent").is_null() | pl.col("concurrent"))
    extents = _with_fresh_times(outermost).group_by("place")
    return extents.agg(
        start_us=pl.col("start_us").min(),
        end_us=pl.col("end_us").max(),
        duration_sec=(pl.col("end_us").max() - pl.col("start_us").min()) * US,
        unaccounted_sec=(pl.col("end_us").max() - pl.col("start_us").min()) * US - pl.col("fresh_sec").sum(),
    )


def _with_fresh_times(spans: pl.DataFrame) -> pl.DataFrame:
    """Return spans with `fresh_sec`, the time that no earlier one of their step covers."""
    ordered = spans.sort("place", "start_us", "end_us")
    reach = pl.col("end_us").cum_max().shift(1).over("place").fill_null(pl.col("start_us"))
    fresh = pl.col("end_us") - pl.max_horizontal(pl.col("start_us"), reach)
    return ordered.with_columns(fresh_sec=fresh.clip(lower_bound=0) * US)


def _is_of(phase: str) -> pl.Expr:
    return pl.col("phase").cast(pl.Categorical) == phase


def _outermost_parts(spans: pl.DataFrame, records: pl.DataFrame) -> pl.DataFrame:
    """Return the spans of `KINDS` outside any span of the same kind; `kind` is the index in `KINDS`."""
    kind = pl.Series("kind", _KIND_OF_PHASE, dtype=pl.Int8).gather(spans["counts_for"].to_physical())
    outer = kind.is_not_null() & kind.ne_missing(kind.gather(spans["parent"]))
    parts = spans.select("place", "row", "span", "event", "start_us", "end_us", "duration_sec").filter(outer)
    names = ("request_id", "turn", "response_tokens", "verifications", *VERSIONS)
    fields = records.select(*names, unended=pl.col("error").eq_missing(UNENDED))[parts["row"]]
    parts = pl.concat([parts.with_columns(kind=kind.filter(outer)), fields], how="horizontal")
    for name in ("response_tokens", "verifications"):
        if records[name].null_count() == len(records):
            continue
        lacks = pl.col("request_id").is_not_null() & (pl.col("kind") == ENGINE) & pl.col(name).is_null()
        if parts.select(lacks.any()).item():
            inside = _sums_inside(spans, records[name], (kind == ENGINE) & ~outer)
            sums = parts.select("row").join(inside, on="row", how="left", maintain_order="left")["number"]
            parts = parts.with_columns(pl.coalesce(name, sums))
    return parts


def _sums_inside(spans: pl.DataFrame, numbers: pl.Series, inner: pl.Series) -> pl.DataFrame:
    """Return the numbers that `inner` engine spans log, summed by the `row` of the outermost one around."""
    parent, tokens = spans["parent"], numbers.gather(spans["row"])
    # A span whose parent logs the number repeats it.
    rows_with_tokens = (inner & tokens.is_not_null() & tokens.gather(parent).is_null()).arg_true()
    around = parent.gather(rows_with_tokens)
    while inner.gather(around).any():
        around = pl.select(
            pl.when(inner.gather(around)).then(parent.gather(around)).otherwise(around)
        ).to_series()
    numbered = pl.DataFrame({"row": spans["row"].gather(around), "number": tokens.gather(rows_with_tokens)})
    return numbered.group_by("row").agg(pl.col("number").sum())


def _requests(
    requests: pl.DataFrame, logged: pl.DataFrame, records: pl.DataFrame, places: pl.DataFrame
) -> pl.DataFrame:
    """Add to requests the time in each kind of work, and the rewards that other records log of them."""
    asked = logged.group_by(REQUEST).agg(pl.col(f"{kind}_sec").sum() for kind in KINDS)
    requests = requests.join(asked, on=REQUEST, how="left").with_columns(
        pl.col(f"{kind}_sec").fill_null(0.0) for kind in KINDS
    )
    if records["reward"].count() > requests["reward"].count():
        of_step = ["step", "validate", "request_id", "attempt"]
        later = records.filter(pl.col("reward").is_not_null() & pl.col("request_id").is_not_null())
        placed = places.select("source", "step", "validate").with_row_index("place")
        known = requests.join(placed.cast({"place": pl.Int64}), on="place", how="left")
        later = rewards_with_attempts(later.select("source", *of_step[:3], "start_us", "reward"), known)
        by_request = later.group_by(of_step).agg(later=pl.col("reward").last())
        requests = known.join(by_request, on=of_step, how="left").drop("source", "step", "validate")
        requests = requests.with_columns(reward=pl.coalesce("reward", "later"))
    return with_untimed(requests, records, places).sort("place", "start_us", "request_id")


def _with_facts_of_turns(
    requests: pl.DataFrame, turns: pl.DataFrame, parts: pl.DataFrame, records: pl.DataFrame
) -> pl.DataFrame:
    """Fill in what requests without an error did not log: their turns, tokens and finish reason.

    A logged number of 0 turns is wrong where the request called the engine: a trainer's counter stays at 0
    while a loop of the user's own makes the calls.
    """
    logged = {name: pl.col(name) for name in _FROM_TURNS} | {
        "turns": pl.when(pl.col("turns") > 0).then("turns")
    }
    lacks = pl.any_horizontal(column.is_null() for column in logged.values()) & pl.col("error").is_null()
    asked = requests.filter(lacks).select(REQUEST).unique()
    if asked.is_empty():
        return requests
    tokens = pl.col("response_tokens")
    of_turns = turns.group_by(REQUEST).agg(
        turns=pl.len().cast(pl.Int64), response_tokens=pl.when(tokens.null_count() == 0).then(tokens.sum())
    )
    calls = parts.filter(pl.col("kind") == ENGINE).join(asked, on=REQUEST, how="semi").sort("end_us")
    reasons = calls.with_columns(finish_reason=records["finish_reason"][calls["row"]])
    last = reasons.group_by(REQUEST).agg(pl.col("finish_reason").drop_nulls().last())
    known = asked.join(of_turns, on=REQUEST, how="left").join(last, on=REQUEST, how="left")
    joined = requests.join(known, on=REQUEST, how="left", suffix="_told", maintain_order="left")
    filled = [
        pl.when(pl.col("error").is_null())
        .then(pl.coalesce(column, f"{name}_told", name))
        .otherwise(name)
        .alias(name)
        for name, column in logged.items()
    ]
    return joined.with_columns(filled).select(requests.columns)


def _outermost_requests(spans: pl.DataFrame, records: pl.DataFrame) -> pl.DataFrame:
    """Return the spans of phase "request" whose parent is not a span of the same request."""
    requests = spans.select("place", "row", "span", "parent", "start_us", "end_us", "duration_sec", "phase")
    requests = requests.filter(_is_of("request")).drop("phase")
    names = ("request_id", "turns", "response_tokens", "finish_reason", "reward", "error", *VERSIONS)
    requests = pl.concat(
        [requests, records.select(*names, *_LABELS)[requests["row"]]],
        how="horizontal",
    )
    if records["group"].null_count() < len(records):  # a prompt's group may be a span around its requests
        around = records["group"].gather(spans["row"].gather(requests["parent"]))
        requests = requests.with_columns(pl.coalesce("group", around))
    above = requests.select(parent="span", outer_id="request_id")
    inner = requests.join(above, on="parent").filter(pl.col("request_id") == pl.col("outer_id"))
    return requests.join(inner.select("span"), on="span", how="anti") if len(inner) else requests


def _barriers(spans: pl.DataFrame, records: pl.DataFrame) -> pl.DataFrame:
    """Return the outermost barriers; at one that ended with an exception, workers may not have met."""
    barriers = spans.select("place", "row", "span", "parent", "event", "phase", "start_us", "end_us").filter(
        _is_of("barrier")
    )
    above = barriers.select(parent="span")
    barriers = barriers.filter(records["error"].gather(barriers["row"]).is_null())
    return barriers.join(above, on="parent", how="anti").sort("place", "start_us")


def _path(spans: pl.DataFrame, records: pl.DataFrame, path: pl.DataFrame) -> pl.DataFrame:
    """Describe the pieces of critical paths, in the order of time."""
    rows = spans.select("place", "row", "event", phase="counts_for")[path["span"]]
    fields = records.select("request_id", "turn")[rows["row"]]
    times = path.select("contains", "blocked_sec", start_us="from_us", end_us="to_us")
    return pl.concat([rows, fields, times], how="horizontal").sort("place", "start_us")
