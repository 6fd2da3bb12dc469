"""Sum up the GPU's work: busy and idle time, kernels, communication alone, graphs, copies."""

from __future__ import annotations

from typing import Final

import polars as pl

from sglang_instrument.traces.intervals import covered_ns
from sglang_instrument.traces.kernels import COMMUNICATION, GRAPH_LAUNCH
from sglang_instrument.traces.table import Trace

_LENGTH: Final = (pl.col("end_ns") - pl.col("start_ns")) / 1e9
#: Idle times by length: short ones are gaps between launches, long ones are waits.
_SIZES: Final = {"under 10 us": 1e-5, "10 to 100 us": 1e-4, "0.1 to 1 ms": 1e-3, "1 to 10 ms": 1e-2}
_LONGEST: Final = "10 ms and more"


def use_of_gpu(work: pl.DataFrame, start_ns: int, end_ns: int) -> dict[str, float]:
    """Return how the time from the first work to the end of the last was used, in seconds.

    Returns:
        busy_sec, idle_sec: something, or nothing, runs on the GPU; busy_share; compute_sec,
        communication_sec, copy_sec: time covered by each; communication_alone_sec: communication during which
        no kernel computes; communication_share, communication_alone_share: their shares of busy_sec.
    """
    communicates = pl.col("category") == COMMUNICATION
    computes = (pl.col("kind") == "kernel") & ~communicates
    whole = (end_ns - start_ns) / 1e9
    busy = covered_ns(work) / 1e9
    compute = covered_ns(work.filter(computes)) / 1e9
    communication = covered_ns(work.filter(communicates)) / 1e9
    alone = covered_ns(work.filter(pl.col("kind") == "kernel")) / 1e9 - compute
    return {
        "busy_sec": busy,
        "idle_sec": whole - busy,
        "busy_share": busy / whole if whole else 0.0,
        "compute_sec": compute,
        "communication_sec": communication,
        "communication_alone_sec": alone,
        "copy_sec": covered_ns(work.filter(pl.col("kind") != "kernel")) / 1e9,
        "communication_share": communication / busy if busy else 0.0,
        "communication_alone_share": alone / busy if busy else 0.0,
    }


def kernels(work: pl.DataFrame) -> pl.DataFrame:
    """Return one row per kernel: name, category, count, total_sec, share of all GPU time, mean_us, max_us."""
    mine = work.filter(pl.col("kind") == "kernel")
    return (
        mine.group_by(pl.col("name").cast(pl.String), pl.col("category").cast(pl.String))
        .agg(*_sums(work))
        .sort("total_sec", "name", descending=[True, False])
    )


def categories(work: pl.DataFrame) -> pl.DataFrame:
    """Return one row per category: category, count, total_sec, share of all GPU time, mean_us, max_us."""
    return (
        work.group_by(pl.col("category").cast(pl.String))
        .agg(*_sums(work))
        .sort("total_sec", "category", descending=[True, False])
    )


def _sums(work: pl.DataFrame) -> list[pl.Expr]:
    whole = work.select(_LENGTH.sum()).item() or 1.0
    return [
        pl.len().cast(pl.Int64).alias("count"),
        _LENGTH.sum().alias("total_sec"),
        (_LENGTH.sum() / whole).alias("share"),
        (_LENGTH.mean() * 1e6).alias("mean_us"),
        (_LENGTH.max() * 1e6).alias("max_us"),
    ]


def by_stage(work: pl.DataFrame, steps: pl.DataFrame) -> pl.DataFrame:
    """Return one row per stage of the engine: prefill, decode ...

    Args:
        work: As `gpu_work` returns it.
        steps: As `engine_steps` returns them.

    Returns:
        stage; steps: marked by the engine; step_sec: their time on the CPU, p50_ms and p99_ms of one;
        gpu_sec: time covered by the work that they launched; gpu_share: of the time covered by all work.
    """
    length = _LENGTH * 1e3
    marked = steps.group_by("stage").agg(
        steps=pl.len().cast(pl.Int64),
        step_sec=_LENGTH.sum(),
        p50_ms=length.quantile(0.5, "linear"),
        p99_ms=length.quantile(0.99, "linear"),
    )
    whole = covered_ns(work) / 1e9
    names = work["stage"].drop_nulls().unique().to_list()
    covered = [covered_ns(work.filter(pl.col("stage") == name)) / 1e9 for name in names]
    busy = pl.DataFrame(
        {"stage": names, "gpu_sec": covered}, schema={"stage": pl.String, "gpu_sec": pl.Float64}
    )
    busy = busy.with_columns(gpu_share=pl.col("gpu_sec") / whole if whole else pl.lit(0.0))
    both = marked.join(busy, on="stage", how="full", coalesce=True)
    return both.sort(pl.col("gpu_sec").fill_null(0.0), "step_sec", "stage", descending=[True, True, False])


def streams(work: pl.DataFrame) -> pl.DataFrame:
    """Return one row per stream: device, stream, count, busy_sec."""
    rows = [
        {"device": device, "stream": stream, "count": len(mine), "busy_sec": covered_ns(mine) / 1e9}
        for (device, stream), mine in work.group_by("device", "stream")
    ]
    schema = {"device": pl.Int64, "stream": pl.Int64, "count": pl.Int64, "busy_sec": pl.Float64}
    return pl.DataFrame(rows, schema=schema).sort("busy_sec", "stream", descending=[True, False])


def copies(work: pl.DataFrame) -> pl.DataFrame:
    """Return one row per kind of copy or memset: name, count, total_sec, bytes; gb_per_sec if known."""
    mine = work.filter(pl.col("kind") != "kernel")
    rows = mine.group_by(pl.col("name").cast(pl.String)).agg(
        count=pl.len().cast(pl.Int64), total_sec=_LENGTH.sum(), bytes=pl.col("bytes").sum()
    )
    moved = pl.when((pl.col("bytes") > 0) & (pl.col("total_sec") > 0))
    return rows.with_columns(gb_per_sec=moved.then(pl.col("bytes") / pl.col("total_sec") / 1e9)).sort(
        "total_sec", "name", descending=[True, False]
    )


def graph_launches(trace: Trace, work: pl.DataFrame) -> pl.DataFrame:
    """Return one row per stage in which CUDA graphs were launched.

    Returns:
        stage (null if unknown), launches; launch_p50_us: of the call on the CPU; gpu_p50_ms, gpu_p99_ms: from
        the first kernel of a graph to the end of its last; every_p50_ms, every_p99_ms: from one graph's first
        kernel to the next one's, which is the time of a decode step if a step is one graph.
    """
    is_launch = pl.col("name").cast(pl.String).str.contains("|".join(GRAPH_LAUNCH))
    calls = trace.events.filter((pl.col("kind") == "runtime") & is_launch)
    calls = calls.select("correlation", call_us=_LENGTH * 1e6)
    graphs = (
        work.filter(pl.col("graph"))
        .group_by("correlation")
        .agg(pl.col("stage").first(), pl.col("start_ns").min(), pl.col("end_ns").max())
        .join(calls, on="correlation")
        .sort("start_ns")
        .with_columns(every=(pl.col("start_ns").shift(-1) - pl.col("start_ns")).over("stage") / 1e6)
    )
    length = _LENGTH * 1e3
    return (
        graphs.group_by("stage")
        .agg(
            launches=pl.len().cast(pl.Int64),
            launch_p50_us=pl.col("call_us").median(),
            gpu_p50_ms=length.quantile(0.5, "linear"),
            gpu_p99_ms=length.quantile(0.99, "linear"),
            every_p50_ms=pl.col("every").quantile(0.5, "linear"),
            every_p99_ms=pl.col("every").quantile(0.99, "linear"),
        )
        .sort("launches", descending=True)
    )


def gap_sizes(idle: pl.DataFrame) -> pl.DataFrame:
    """Return idle times by their length: size, count, total_sec."""
    length = (idle["end_ns"] - idle["start_ns"]) / 1e9
    rows, below = [], 0.0
    for size, limit in (*_SIZES.items(), (_LONGEST, float("inf"))):
        mine = length.filter((length >= below) & (length < limit))
        rows.append({"size": size, "count": len(mine), "total_sec": float(mine.sum())})
        below = limit
    return pl.DataFrame(rows)
