"""Find which span ran inside which, and each span's own time.

Within one lane (an asyncio task or a thread; in logs without `task`, a request) a span's parent is the
innermost span that contains it. The outermost spans of a lane are concurrent children of the span that was
open in the lane that spawned theirs. Time that several children cover counts once against their parent.
"""

from typing import Final

import polars as pl

from sglang_instrument.analysis.timing.grouped_sums import US
from sglang_instrument.analysis.timing.lanes import NONE, in_lanes
from sglang_instrument.analysis.timing.parents import find_parents
from sglang_instrument.schema import PHASES

_STRUCTURE: Final = ("step", "request", "turn", "loop")  # phases of spans that contain other phases
PHASE: Final = pl.Enum(PHASES)


def nest(records: pl.DataFrame) -> pl.DataFrame:
    """Return the spans of `records`, nested.

    Args:
        records: A table with the columns of `reader.COLUMNS`, or some of them.

    Returns:
        The rows that have a duration, with these columns added.
        span: The row's number.
        parent: The number of the span that it ran inside, or null.
        concurrent: Whether the parent is in another lane.
        step_span: The number of the outermost span of phase "step" among this span and its ancestors, or
            null.
        counts_for: The phase; for a span of phase "other", that of the work around it.
        fresh_sec: The part of the parent's time that this child covers and no earlier child does.
        without_nested_sec: The duration minus the union of the children's times.
    """
    return nest_and_clip(records)[0]


def nest_and_clip(records: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return what `nest` returns, and `clipped_children` of it."""
    timed = records["duration_sec"].is_not_null()
    spans = records if timed.all() else records.filter(timed)
    lanes = in_lanes(records)
    spans = spans[lanes.row]
    parent, concurrent = find_parents(lanes, spans["start_us"], spans["end_us"])
    spans = spans.with_columns(
        span=pl.int_range(len(spans), dtype=pl.Int64),
        parent=parent.set(parent == NONE, None),
        concurrent=concurrent,
    )
    children = clipped_children(spans)
    fresh, covered_us = _covered_times(spans, children)
    rest_sec = (pl.col("duration_sec") - covered_us * US).clip(lower_bound=0.0)
    spans = spans.with_columns(
        step_span=_step_spans(spans),
        counts_for=_counted_phases(spans),
        fresh_sec=fresh,
        without_nested_sec=rest_sec,
    )
    return spans, children


def _step_spans(spans: pl.DataFrame) -> pl.Series:
    """Return for each span the outermost span of phase "step" among itself and its ancestors."""
    stepping = pl.col("phase").cast(pl.Categorical) == "step"
    step_spans = spans.select(pl.when(stepping).then("span")).to_series()
    up = spans["parent"]
    for _ in range(20):  # each round doubles the number of ancestors seen
        if up.null_count() == len(up):
            break
        higher = step_spans.gather(up)
        step_spans = pl.select(pl.coalesce(higher, step_spans)).to_series()
        up = up.gather(up)
    return step_spans


def _counted_phases(spans: pl.DataFrame) -> pl.Series:
    """Return the phase that each span counts for: its own, or, for "other", that of the work around it.

    A user's own span inside a tool counts as tool; directly inside a turn, as "other". So does a span whose
    phase is not in the vocabulary.
    """
    named = spans["phase"].cast(pl.Categorical)
    phases = named.unique().cast(pl.String).to_list()
    if all(phase in PHASES and phase != "other" for phase in phases):
        plain: pl.Series = named.cast(PHASE)
        return plain
    other: pl.Series = named == "other"
    nothing = pl.lit("other", dtype=PHASE)
    known = pl.select(
        pl.coalesce(named.cast(pl.String).cast(PHASE, strict=False), nothing).alias("phase")
    ).to_series()
    counted = pl.select(pl.when(~other).then(known)).to_series()
    up = spans["parent"]
    for _ in range(20):  # each round doubles the number of ancestors seen
        if up.null_count() == len(up):
            break
        counted = pl.select(pl.coalesce(counted, counted.gather(up))).to_series()
        up = up.gather(up)
    part = counted.is_not_null() & ~counted.cast(pl.String).is_in(_STRUCTURE)
    inside = pl.when(part).then(counted).otherwise(nothing)
    return pl.select(pl.when(other).then(inside).otherwise(known)).to_series()


def clipped_children(spans: pl.DataFrame) -> pl.DataFrame:
    """Return all children, clipped to their parents, grouped by parent and in the order of time.

    Columns: `span`, `parent`, `from_us`, `to_us`, and `reach`: up to where earlier children cover the parent.
    """
    children = spans.select("span", "parent", "start_us", "end_us").filter(pl.col("parent").is_not_null())
    children = children.with_columns(
        parent_start=spans["start_us"].gather(children["parent"]),
        parent_end=spans["end_us"].gather(children["parent"]),
    )
    clipped = children.select(
        "span",
        "parent",
        "parent_start",
        "parent_end",
        from_us=pl.col("start_us").clip("parent_start", "parent_end"),
        to_us=pl.col("end_us").clip("parent_start", "parent_end"),
    )
    # Shift the parents so that they follow one another: then one running maximum serves all.
    long = (clipped["parent_end"] - clipped["parent_start"]).max() or 0
    base = pl.col("parent") * (int(long) + 1) - pl.col("parent_start")
    clipped = clipped.with_columns(begun=base + pl.col("from_us")).sort("begun", maintain_order=True)
    so_far = (base + pl.col("to_us")).cum_max().shift(1).fill_null(0)
    reach = pl.max_horizontal(so_far - base, pl.col("parent_start"))
    return clipped.with_columns(reach=reach).drop("begun")


def _covered_times(spans: pl.DataFrame, children: pl.DataFrame) -> tuple[pl.Series, pl.Series]:
    """Return for each span its `fresh_sec`, and the microseconds that its children cover."""
    fresh = (pl.col("to_us") - pl.max_horizontal("from_us", "reach")).clip(lower_bound=0)
    children = children.select("span", "parent", fresh=fresh)
    fresh_us = pl.repeat(None, len(spans), dtype=pl.Float64, eager=True)
    fresh_us = fresh_us.scatter(children["span"], children["fresh"] * US)
    # Children are grouped by parent: a parent's sum is the running sum at its last child minus that before
    # its first.
    last = children["parent"] != children["parent"].shift(-1, fill_value=-1)
    up_to = children["fresh"].cum_sum().filter(last)
    all_children = pl.zeros(len(spans), dtype=pl.Int64, eager=True)
    all_children = all_children.scatter(children["parent"].filter(last), up_to - up_to.shift(1, fill_value=0))
    return fresh_us, all_children
