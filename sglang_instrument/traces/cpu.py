"""Show what the CPU did: operators by self time, and what ran while the GPU, or the engine, was idle."""

from __future__ import annotations

from typing import Any, Final

import polars as pl

from sglang_instrument.traces.table import Trace

_WORK: Final = ("cpu_op", "annotation", "runtime")
_LOOKED_AT: Final = ("name", "kind", "lane", "start_ns", "end_ns")
_COVERS: Final = 0.5  # share of a gap that an event must cover to be its reason
_TOUCHES: Final = 0.05  # what covers less only begins or ends in it: a program that waits calls nothing


def cpu_ops(trace: Trace) -> pl.DataFrame:
    """Return one row per operator, annotation or runtime call, the longest self time first.

    Returns:
        name, kind, count, total_sec; without_nested_sec: the same without the time of what ran inside, in the
        same thread.
    """
    mine = trace.events.filter(pl.col("kind").is_in(list(_WORK))).select(*_LOOKED_AT)
    lasting = pl.col("end_ns") > pl.col("start_ns")  # events of zero length have no children and no self time
    ordered = mine.filter(lasting).sort(
        "lane", "start_ns", "end_ns", descending=[False, False, True], maintain_order=True
    )
    timed = pl.concat(
        [
            ordered.with_columns(own_ns=_own_times(ordered)),
            mine.filter(~lasting).with_columns(own_ns=pl.lit(0, pl.Int64)),
        ]
    )
    return (
        timed.group_by("name", "kind")
        .agg(
            count=pl.len().cast(pl.Int64),
            total_sec=(pl.col("end_ns") - pl.col("start_ns")).sum() / 1e9,
            without_nested_sec=pl.col("own_ns").sum() / 1e9,
        )
        .with_columns(pl.col("name", "kind").cast(pl.String))
        .sort("without_nested_sec", "name", descending=[True, False])
    )


def _own_times(ordered: pl.DataFrame) -> pl.Series:
    """Return the durations minus those of the children; events of a lane nest, the outer ones come first."""
    depths = _depths(ordered)
    rows = pl.int_range(len(ordered), dtype=pl.UInt32, eager=True)
    whole = ordered["end_ns"] - ordered["start_ns"]
    taken = pl.zeros(len(ordered), dtype=pl.Int64, eager=True)
    deepest: Any = depths.max()
    for depth in range(1, (deepest or 0) + 1):
        # The parent is the last event before it in the level above: forward_fill finds it for all.
        above = pl.select(pl.when(depths == depth - 1).then(rows)).to_series().forward_fill()
        children = depths == depth
        parents = above.filter(children)
        inside = pl.DataFrame(
            {"end": ordered["end_ns"].filter(children), "far": ordered["end_ns"].gather(parents)}
        )
        length = inside.select(pl.min_horizontal("end", "far")).to_series() - ordered["start_ns"].filter(
            children
        )
        sums = (
            pl.DataFrame({"parent": parents, "length": length}).group_by("parent").agg(pl.col("length").sum())
        )
        taken = taken.scatter(sums["parent"], sums["length"])  # all children of a parent are in one level
    self_times: pl.Series = whole - taken
    return self_times.clip(lower_bound=0)


def _depths(ordered: pl.DataFrame) -> pl.Series:
    """Return for each event how many events of its lane are open when it begins."""
    depths = []
    for lane in ordered["lane"].unique(maintain_order=True):
        mine = ordered.filter(pl.col("lane") == lane)
        ended = mine["end_ns"].sort().search_sorted(mine["start_ns"], side="right")
        depths.append(pl.int_range(len(mine), dtype=pl.Int64, eager=True) - ended.cast(pl.Int64))
    return pl.concat(depths).clip(lower_bound=0) if depths else pl.Series(dtype=pl.Int64)


def top_gaps(trace: Trace, idle: pl.DataFrame, start_ns: int, top: int) -> pl.DataFrame:
    """Return the longest idle times, and what the CPU did meanwhile.

    Args:
        trace: The trace.
        idle: Intervals in which the GPU, or the engine, was idle.
        start_ns: The time at which the rows' times begin.
        top: How many rows.

    Returns:
        at_sec, duration_sec; cpu: the innermost work that covers at least half of the gap, else what covers
        most of it; null if nothing covers a twentieth; covered_share: its share of the gap.
    """
    long = idle.sort(pl.col("end_ns") - pl.col("start_ns"), descending=True, maintain_order=True).head(top)
    rows: list[dict[str, Any]] = []
    for begun, ended in long.iter_rows():
        name, share = _reason(trace.events, begun, ended)
        rows.append(
            {
                "at_sec": (begun - start_ns) / 1e9,
                "duration_sec": (ended - begun) / 1e9,
                "cpu": name,
                "covered_share": share,
            }
        )
    times = {"at_sec": pl.Float64, "duration_sec": pl.Float64}
    return pl.DataFrame(rows, schema={**times, "cpu": pl.String, "covered_share": pl.Float64})


def _reason(events: pl.DataFrame, begun: int, ended: int) -> tuple[str | None, float]:
    """Return what ran on the CPU in a gap, and its share; a Python frame only if there is nothing else."""
    over = events.filter((pl.col("start_ns") < ended) & (pl.col("end_ns") > begun))
    for kinds in (_WORK, ("python",)):
        mine = over.filter(pl.col("kind").is_in(list(kinds)))
        shared = (
            pl.min_horizontal("end_ns", pl.lit(ended)) - pl.max_horizontal("start_ns", pl.lit(begun))
        ) / (ended - begun)
        mine = mine.with_columns(shared=shared, length=pl.col("end_ns") - pl.col("start_ns"))
        covering = mine.filter(pl.col("shared") >= _COVERS).sort("length")
        if len(covering):
            return str(covering["name"][0]), float(covering["shared"][0])
        most = mine.sort("shared", descending=True).head(1)
        if len(most) and most["shared"][0] >= _TOUCHES:
            return str(most["name"][0]), float(most["shared"][0])
    return None, 0.0
