"""Say what the CPU did: operators by their own time, and what ran while the GPU, or the engine, was idle."""

from __future__ import annotations

from typing import Any, Final

import polars as pl

from sglang_instrument.profiling.traces_table import Trace

_WORK: Final = ("cpu_op", "annotation", "runtime")
_COVERS: Final = 0.5  # of a gap that something has to cover to be its reason


def cpu_ops(trace: Trace) -> pl.DataFrame:
    """Return a row an operator, mark or call of the runtime, the one with most time of its own first.

    Returns:
        name, kind, count, total_sec; self_sec: the same less the time of what ran inside, in the same thread.
    """
    mine = trace.events.filter(pl.col("kind").cast(pl.String).is_in(list(_WORK)))
    ordered = mine.sort("lane", "start_ns", "end_ns", descending=[False, False, True], maintain_order=True)
    own = ordered.with_columns(own_ns=_own_times(ordered))
    return (
        own.group_by(pl.col("name").cast(pl.String), pl.col("kind").cast(pl.String))
        .agg(
            count=pl.len().cast(pl.Int64),
            total_sec=(pl.col("end_ns") - pl.col("start_ns")).sum() / 1e9,
            self_sec=pl.col("own_ns").sum() / 1e9,
        )
        .sort("self_sec", "name", descending=[True, False])
    )


def _own_times(ordered: pl.DataFrame) -> pl.Series:
    """Return the durations less those of the children; events of a lane nest, the outer ones first."""
    starts, ends = ordered["start_ns"].to_list(), ordered["end_ns"].to_list()
    own = [end - start for start, end in zip(starts, ends, strict=True)]
    stack: list[int] = []
    lane = None
    for row, (mine, start, end) in enumerate(zip(ordered["lane"].to_list(), starts, ends, strict=True)):
        if mine != lane:
            lane, stack = mine, []
        while stack and ends[stack[-1]] <= start:
            stack.pop()
        if stack:
            own[stack[-1]] -= min(end, ends[stack[-1]]) - start
        stack.append(row)
    return pl.Series(own, dtype=pl.Int64).clip(lower_bound=0)


def top_gaps(trace: Trace, idle: pl.DataFrame, start_ns: int, top: int) -> pl.DataFrame:
    """Return the longest idle times, and what the CPU did meanwhile.

    Args:
        trace: The trace.
        idle: Intervals in which the GPU, or the engine, was idle.
        start_ns: From which the rows count.
        top: How many.

    Returns:
        at_sec, duration_sec; cpu: the innermost work that covers at least half of the gap, else what covers
        most of it; null if nothing does; covered: its share of the gap.
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
                "covered": share,
            }
        )
    schema = {"at_sec": pl.Float64, "duration_sec": pl.Float64, "cpu": pl.String, "covered": pl.Float64}
    return pl.DataFrame(rows, schema=schema)


def _reason(events: pl.DataFrame, begun: int, ended: int) -> tuple[str | None, float]:
    """Return what ran on the CPU in a gap, and its share of it; a Python frame where that is all there is."""
    over = events.filter((pl.col("start_ns") < ended) & (pl.col("end_ns") > begun))
    for kinds in (_WORK, ("python",)):
        mine = over.filter(pl.col("kind").cast(pl.String).is_in(list(kinds)))
        shared = (
            pl.min_horizontal("end_ns", pl.lit(ended)) - pl.max_horizontal("start_ns", pl.lit(begun))
        ) / (ended - begun)
        mine = mine.with_columns(shared=shared, length=pl.col("end_ns") - pl.col("start_ns"))
        covering = mine.filter(pl.col("shared") >= _COVERS).sort("length")
        if len(covering):
            return str(covering["name"][0]), float(covering["shared"][0])
        if len(mine):
            most = mine.sort("shared", descending=True)
            return str(most["name"][0]), float(most["shared"][0])
    return None, 0.0
