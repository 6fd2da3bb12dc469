"""Compute with intervals of time: their union, the gaps between them, their overlaps."""

from __future__ import annotations

import polars as pl

#: A table of intervals: `start_ns` and `end_ns`.
_TIMES = ("start_ns", "end_ns")


def merged(intervals: pl.DataFrame) -> pl.DataFrame:
    """Return disjoint intervals that cover the same time, in order."""
    ordered = intervals.select(_TIMES).filter(pl.col("end_ns") > pl.col("start_ns")).sort(_TIMES)
    reach = pl.col("end_ns").cum_max().shift(1)
    group = (pl.col("start_ns") > reach).fill_null(False).cum_sum()
    return (
        ordered.with_columns(group=group)
        .group_by("group", maintain_order=True)
        .agg(pl.col("start_ns").first(), pl.col("end_ns").max())
        .drop("group")
    )


def covered_ns(intervals: pl.DataFrame) -> int:
    """Return the time that intervals cover together; overlaps count once."""
    whole = merged(intervals)
    return int((whole["end_ns"] - whole["start_ns"]).sum())


def gaps(intervals: pl.DataFrame, start_ns: int | None = None, end_ns: int | None = None) -> pl.DataFrame:
    """Return the gaps between intervals, also from `start_ns` and up to `end_ns` if given."""
    whole = merged(intervals)
    edges = [(edge, edge) for edge in (start_ns, end_ns) if edge is not None]  # empty intervals
    table = pl.DataFrame(edges, schema=dict.fromkeys(_TIMES, pl.Int64), orient="row")
    ordered = pl.concat([whole, table]).sort(_TIMES)
    return (
        ordered.select(start_ns=pl.col("end_ns").cum_max(), end_ns=pl.col("start_ns").shift(-1))
        .drop_nulls()
        .filter(pl.col("end_ns") > pl.col("start_ns"))
    )


def time_within(intervals: pl.DataFrame, marked: pl.DataFrame) -> pl.Series:
    """Return for each interval how much of it, in nanoseconds, lies in marked time.

    Args:
        intervals: With `start_ns` and `end_ns`.
        marked: The same; disjoint and in order, as `merged` and `gaps` return them.
    """
    lengths = marked["end_ns"] - marked["start_ns"]
    before = marked.with_columns(length=lengths, before=lengths.cum_sum().shift(1, fill_value=0))
    upto = [_marked_until(intervals[name], before) for name in _TIMES]
    within: pl.Series = upto[1] - upto[0]
    return within.alias("within_ns")


def _marked_until(times: pl.Series, marked: pl.DataFrame) -> pl.Series:
    """Return the marked time before each point in time."""
    asked = pl.DataFrame({"at_ns": times}).with_row_index("row").sort("at_ns")
    latest = asked.join_asof(marked, left_on="at_ns", right_on="start_ns", strategy="backward")
    into = pl.min_horizontal(pl.col("at_ns") - pl.col("start_ns"), "length")
    until = latest.with_columns(until=(pl.col("before") + into).fill_null(0))
    ordered: pl.Series = until.sort("row")["until"]
    return ordered


def inside(events: pl.DataFrame, spans: pl.DataFrame, by: str) -> pl.Series:
    """Return for each event the row of the span that was open when it began, with the same `by`, or null.

    Args:
        events: With `start_ns` and `by`.
        spans: With `start_ns`, `end_ns` and `by`; those with the same `by` do not overlap.
        by: A column of both.
    """
    opened = spans.with_row_index("span").select("span", by, begun="start_ns", ended="end_ns").sort("begun")
    asked = events.select("start_ns", by).with_row_index("row").sort("start_ns")
    held = pl.when(pl.col("start_ns") < pl.col("ended")).then("span").alias("span")
    joined_parts = [asked.clear().select("row", span="row")]
    for key in opened[by].unique():  # one by one: they are sorted within each key, which polars cannot check
        mine, theirs = asked.filter(pl.col(by) == key), opened.filter(pl.col(by) == key)
        joined = mine.join_asof(theirs, left_on="start_ns", right_on="begun", strategy="backward")
        joined_parts.append(joined.select("row", held))
    return (
        asked.select("row")
        .sort("row")
        .join(pl.concat(joined_parts), on="row", how="left", maintain_order="left")["span"]
    )
