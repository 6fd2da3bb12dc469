"""Find the parent of each span: within its lane, or, for outermost spans, in the lane that spawned theirs.

All spans of a batch are handled together, in a few passes over columns: a Python loop over the spans would
take longer than everything else that is done with them.
"""

from typing import Final

import polars as pl

from sglang_instrument.analysis.timing.lanes import NONE, TIME_BITS, Lanes, compact, packed

_DEEPEST: Final = 16  # levels of spawners to follow; tasks nest far less, and this ends circles


def find_parents(lanes: Lanes, starts: pl.Series, ends: pl.Series) -> tuple[pl.Series, pl.Series]:
    """Return the parent of each span, NONE if it has none, and whether the parent is in another lane.

    Args:
        lanes: The spans in lanes. Results are in this order, and parents are positions in it.
        starts: Of the spans, in this order.
        ends: Of the spans, in this order.
    """
    within = _containing(lanes)
    elsewhere = _without_circles(within, _in_other_lanes(lanes, within, starts, ends))
    if elsewhere.is_empty():
        return within, pl.repeat(False, len(within), eager=True)
    concurrent = pl.repeat(False, len(within), eager=True).scatter(elsewhere["span"], True)
    return within.clone().scatter(elsewhere["span"], elsewhere["parent"]), concurrent


def _containing(lanes: Lanes) -> pl.Series:
    """Return for each span the last one before it, in its lane, that contains it.

    A candidate that does not contain a span is skipped together with all that it skipped itself, for none of
    those ends later. So each round looks twice as far back as the one before.
    """
    lane, near, far = lanes.lane, lanes.near, lanes.far
    first = lane != lane.shift(1, fill_value=NONE)
    before = pl.int_range(-1, len(lane) - 1, dtype=pl.Int64, eager=True).set(first, NONE)
    inside = _contain((near.shift(1), far.shift(1)), (near, far), lanes.slack_us)
    rows = (~(inside | first)).arg_true()
    while len(rows):
        earlier = before.gather(before.gather(rows))
        before = before.scatter(rows, earlier)
        rows, candidates = rows.filter(earlier != NONE), earlier.filter(earlier != NONE)
        outer = near.gather(candidates), far.gather(candidates)
        inner = near.gather(rows), far.gather(rows)
        rows = rows.filter(~_contain(outer, inner, lanes.slack_us.gather(rows)))
    return before


def _contain(
    outer: tuple[pl.Series, pl.Series], inner: tuple[pl.Series, pl.Series], slack_us: pl.Series
) -> pl.Series:
    """Return which outer spans, given as (near, far), contain the inner ones, which begin no earlier."""
    begun = (inner[0] < outer[1]) | (inner[0] == outer[0])
    contain: pl.Series = begun & (inner[1] <= outer[1] + slack_us)
    return contain


def _in_other_lanes(lanes: Lanes, within: pl.Series, starts: pl.Series, ends: pl.Series) -> pl.DataFrame:
    """Return the outermost spans of lanes that have a `parent` in the lane that spawned theirs."""
    begun = compact(starts, TIME_BITS)
    by_start = pl.DataFrame({"key": packed(lanes.lane, begun), "end": ends}).with_row_index("span")
    if not by_start["key"].is_sorted():  # some lanes are mirrored in time
        by_start = by_start.sort("key", "end", descending=[False, True])
    orphans = (within == NONE).arg_true()
    above = lanes.spawner.gather(lanes.lane.gather(orphans))
    spans, parents = [pl.Series([], dtype=pl.UInt32)], [pl.Series([], dtype=pl.Int64)]
    for _ in range(_DEEPEST):
        orphans, above = orphans.filter(above != NONE), above.filter(above != NONE)
        if orphans.is_empty():
            break
        key = packed(above, begun.gather(orphans))
        # An expression, because Series.search_sorted() of older polars needs numpy.
        sought = pl.lit(by_start["key"]).search_sorted(pl.lit(key), side="right")
        place = pl.select(sought.cast(pl.Int64)).to_series()
        last = by_start["span"].gather(place - 1).cast(pl.Int64)
        last = last.set((place == 0) | (lanes.lane.gather(last) != above), NONE)
        parent = _still_open(last, starts.gather(orphans), within, ends)
        has_parent = (parent != NONE) & (parent != orphans)
        spans.append(orphans.filter(has_parent))
        parents.append(parent.filter(has_parent))
        orphans = orphans.filter(~has_parent)
        above = lanes.spawner.gather(above.filter(~has_parent))
    return pl.DataFrame({"span": pl.concat(spans), "parent": pl.concat(parents)})


def _without_circles(within: pl.Series, elsewhere: pl.DataFrame) -> pl.DataFrame:
    """Drop parents in other lanes that make a span its own ancestor: tasks may spawn one another."""
    if elsewhere.is_empty():
        return elsewhere
    ancestor = within.clone().scatter(elsewhere["span"], elsewhere["parent"])
    ancestor = ancestor.set(ancestor == NONE, None)
    for _ in range(len(within).bit_length()):  # each round looks twice as far up as the one before
        if ancestor.null_count() == len(ancestor):
            return elsewhere
        ancestor = ancestor.gather(ancestor)
    # Whatever has an ancestor this far up is in a circle or below one, and that ancestor is in the circle.
    in_circle = pl.repeat(False, len(within), eager=True).scatter(ancestor.drop_nulls().unique(), True)
    return elsewhere.filter(~in_circle.gather(elsewhere["span"]))


def _still_open(span: pl.Series, at_us: pl.Series, within: pl.Series, ends: pl.Series) -> pl.Series:
    """Return the innermost of each span and its ancestors that ends after `at_us`, or NONE.

    Of the spans of a lane that began before this time, only ancestors of the last one can still be open once
    that one has ended.
    """
    ended = (span != NONE) & (ends.gather(span) <= at_us)
    while ended.any():
        span = within.gather(span).zip_with(ended, span)
        ended = (span != NONE) & (ends.gather(span) <= at_us)
    return span
