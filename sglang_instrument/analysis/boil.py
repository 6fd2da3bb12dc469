"""Make rows of nested spans: steps, requests, turns and barriers."""

from collections.abc import Mapping
from typing import Final

import polars as pl

from sglang_instrument.schema import PHASES

#: What every row says of itself. `source` numbers what one run wrote to one file.
PLACE: Final = ("source", "role", "worker", "step", "validate")
#: Kinds of work within a request; a span of a kind that lies in another one of its kind is part of it.
KINDS: Final[Mapping[str, tuple[str, ...]]] = {
    "engine": ("generate", "engine"),
    "tool": ("tool",),
    "interaction": ("interaction",),
    "reward": ("reward",),
}
_KIND_OF_PHASE: Final = [
    next((number for number, phases in enumerate(KINDS.values()) if phase in phases), None)
    for phase in PHASES
]
_REQUEST: Final = ["place", "request_id"]


def boil(spans: pl.DataFrame, records: pl.DataFrame, places: pl.DataFrame) -> dict[str, pl.DataFrame]:
    """Return the tables of a digest by name.

    Args:
        spans: Nested, with `wall_sec`; `span` numbers them from 0, `row` is that of `records`, `place` that
            of `places`.
        records: What else is known of them, and records that may hold a reward by request.
        places: Columns of `PLACE`.
    """
    parts = _outermost_parts(spans, records)
    logged = _logged_turns(parts)
    tables = {
        "steps": _steps(spans, len(places)),
        "requests": _requests(spans, logged, records, places),
        "turns": _turns(logged.drop_nulls("turn")),
        "barriers": _barriers(spans),
    }
    placed = places.with_row_index("place").cast({"place": pl.Int64}).filter(pl.col("step").is_not_null())
    return {name: table.join(placed, on="place", maintain_order="left") for name, table in tables.items()}


def _steps(spans: pl.DataFrame, places: int) -> pl.DataFrame:
    """Return the steps of workers.

    A step is its spans of phase "step"; a program without any is measured from its first span to its last
    end.
    """
    whole = spans.filter(pl.col("span") == pl.col("step_span"))
    steps = whole.group_by("place").agg(
        start_us=pl.col("start_us").min(),
        duration_sec=pl.col("duration_sec").sum(),
        remainder_sec=pl.col("self_sec").sum(),
    )
    if len(steps) < places:
        steps = pl.concat([steps, _extents(spans.join(steps, on="place", how="anti"))])
    barriers = spans.filter(_is_of("barrier")).group_by("place").agg(barrier_sec=pl.col("wall_sec").sum())
    cell = pl.col("place") * len(PHASES) + pl.col("counts_for").to_physical()
    walls = spans.group_by(cell=cell).agg(pl.col("wall_sec").sum())
    phase = pl.col("cell") % len(PHASES)
    shares = walls.group_by(place=pl.col("cell") // len(PHASES)).agg(
        pl.col("wall_sec").filter(phase == number).sum().alias(f"wall_{name}")
        for number, name in enumerate(PHASES)
    )
    steps = steps.join(barriers, on="place", how="left").join(shares, on="place", how="left")
    return steps.with_columns(pl.col("barrier_sec").fill_null(0.0)).sort("place")


def _extents(spans: pl.DataFrame) -> pl.DataFrame:
    extents = without_parents(spans, ["place"]).group_by("place")
    return extents.agg(
        start_us=pl.col("start_us").min(),
        duration_sec=(pl.col("end_us").max() - pl.col("start_us").min()) / 1e6,
        remainder_sec=(pl.col("end_us").max() - pl.col("start_us").min()) / 1e6 - pl.col("fresh_sec").sum(),
    )


def without_parents(spans: pl.DataFrame, key: list[str]) -> pl.DataFrame:
    """Return the outermost spans with `fresh_sec`: their time that no earlier one of the step covers."""
    outermost = spans.filter(pl.col("parent").is_null()).sort(*key, "start_us", "end_us")
    reach = pl.col("end_us").cum_max().shift(1).over(key).fill_null(pl.col("start_us"))
    fresh = pl.col("end_us") - pl.max_horizontal(pl.col("start_us"), reach)
    return outermost.with_columns(fresh_sec=fresh.clip(lower_bound=0) / 1e6)


def _is_of(phase: str) -> pl.Expr:
    return pl.col("phase").cast(pl.Categorical) == phase


def _outermost_parts(spans: pl.DataFrame, records: pl.DataFrame) -> pl.DataFrame:
    """Return the spans of `KINDS` that are in no other of their kind, with `kind`, a column of its time."""
    kind = pl.Series("kind", _KIND_OF_PHASE, dtype=pl.Int8).gather(spans["counts_for"].to_physical())
    outer = kind.is_not_null() & kind.ne_missing(kind.gather(spans["parent"]))
    parts = spans.select("place", "row", "event", "start_us", "end_us", "duration_sec").filter(outer)
    fields = records.select("request_id", "turn", "response_tokens")[parts["row"]]
    return pl.concat([parts.with_columns(kind=kind.filter(outer)), fields], how="horizontal")


def _times_of_kinds() -> list[pl.Expr]:
    return [
        pl.col("duration_sec").filter(pl.col("kind") == number).sum().alias(f"{kind}_sec")
        for number, kind in enumerate(KINDS)
    ]


def _requests(
    spans: pl.DataFrame, logged: pl.DataFrame, records: pl.DataFrame, places: pl.DataFrame
) -> pl.DataFrame:
    requests = _outermost_requests(spans, records)
    asked = logged.group_by(_REQUEST).agg(pl.col(f"{kind}_sec").sum() for kind in KINDS)
    requests = requests.join(asked, on=_REQUEST, how="left").with_columns(
        pl.col(f"{kind}_sec").fill_null(0.0) for kind in KINDS
    )
    if records["reward"].count() > requests["reward"].count():
        of_step = ["step", "validate", "request_id"]
        later = records.filter(pl.col("reward").is_not_null() & pl.col("request_id").is_not_null())
        by_request = later.group_by(of_step).agg(later=pl.col("reward").last())
        known = requests.join(
            places.select("step", "validate").with_row_index("place"), on="place", how="left"
        )
        requests = known.join(by_request, on=of_step, how="left").drop("step", "validate")
        requests = requests.with_columns(reward=pl.coalesce("reward", "later"))
    return requests.sort("place", "start_us", "request_id")


def _outermost_requests(spans: pl.DataFrame, records: pl.DataFrame) -> pl.DataFrame:
    """Return the spans of phase "request" that are not directly inside another one of the same request."""
    requests = spans.select("place", "row", "span", "parent", "start_us", "end_us", "duration_sec", "phase")
    requests = requests.filter(_is_of("request")).drop("phase")
    names = ("request_id", "turns", "response_tokens", "finish_reason", "reward", "error")
    requests = pl.concat([requests, records.select(names)[requests["row"]]], how="horizontal")
    above = requests.select(parent="span", outer_id="request_id")
    inner = requests.join(above, on="parent").filter(pl.col("request_id") == pl.col("outer_id"))
    return requests.join(inner.select("span"), on="span", how="anti") if len(inner) else requests


def _logged_turns(parts: pl.DataFrame) -> pl.DataFrame:
    """Return what was logged under each number of a turn, and under none, of each request, in order."""
    engine = pl.col("kind") == 0
    return (
        parts.filter(pl.col("request_id").is_not_null())
        .group_by([*_REQUEST, "turn"])
        .agg(
            *_times_of_kinds(),
            event=pl.col("event").get(pl.col("duration_sec").arg_max()),
            longest_sec=pl.col("duration_sec").max(),
            start_us=pl.col("start_us").min(),
            end_us=pl.col("end_us").max(),
            response_tokens=pl.col("response_tokens").filter(engine).max(),
            called=engine.any(),
        )
        .sort(*_REQUEST, "turn")
    )


def _turns(logged: pl.DataFrame) -> pl.DataFrame:
    """Return the turns: each has an engine call, and what follows under other numbers until the next one."""
    # An interaction may be logged under the number of the reply that never came.
    first = pl.any_horizontal(pl.col(name).ne_missing(pl.col(name).shift(1)) for name in _REQUEST)
    calls = pl.col("called").cast(pl.Int64).cum_sum()
    earlier = pl.when(first).then(calls - pl.col("called")).forward_fill()
    turn = (first | (pl.col("called") & (calls - earlier > 1))).cum_sum()
    return (
        logged.group_by(number=turn, maintain_order=True)
        .agg(
            *(pl.col(name).first() for name in _REQUEST),
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
    barriers = spans.select("place", "span", "parent", "event", "phase", "start_us", "end_us").filter(
        _is_of("barrier")
    )
    above = barriers.select(parent="span")
    return barriers.join(above, on="parent", how="anti").sort("place", "start_us")
