"""Compare traces with the run that they belong to: what did requests wait for while the engine was idle?"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import polars as pl

from sglang_instrument.traces.answers import TraceAnalysis
from sglang_instrument.traces.intervals import time_within

#: Words for what a request does while a span of these phases is at work in it.
DOING: Final = {
    "tool": "waited for a tool",
    "interaction": "waited for an interaction",
    "environment": "waited for an environment",
    "reward": "waited for a reward",
    "generate": "were in an engine call",
    "engine": "were in an engine call",
}
_ELSE: Final = "were between these"
_OF_WORKER: Final = re.compile(r"worker[-_]?(\d+)", re.IGNORECASE)


@dataclass(frozen=True)
class IdleInStep:
    """How idle an engine was during a step, and what the requests did in that time.

    Attributes:
        rank: Of the trace; step, validate, worker: Of the run.
        overlap_sec: For how long trace and step overlap.
        idle_share: Share of this time in which the GPU, or the engine, was idle.
        requests: The average number of requests in each activity during the idle time, the largest first.
        sentence: The same in words.
    """

    rank: str
    step: int
    validate: bool
    worker: int
    overlap_sec: float
    idle_share: float
    requests: dict[str, float]
    sentence: str


def worker_of(trace: TraceAnalysis, workers: Sequence[int]) -> list[int]:
    """Return the workers whose engine a trace may show: the one named by its file or folder, else all."""
    named = _OF_WORKER.search(trace.profile_id) or _OF_WORKER.search(Path(trace.file).parent.name)
    return [int(named[1])] if named and int(named[1]) in workers else list(workers)


def idle_in_steps(
    trace: TraceAnalysis, steps: pl.DataFrame, activity: pl.DataFrame, workers: Iterable[int]
) -> list[IdleInStep]:
    """Return, for each step that ran during a trace, how idle the engine was and what the requests did then.

    Args:
        trace: With a clock.
        steps: step, validate, worker, start_us, end_us, on the clock of the trace's host.
        activity: step, validate, worker, request_id, phase, from_us, to_us: what was at work in each request.
        workers: The workers to look at.
    """
    if trace.start_us is None or not trace.window_sec:
        return []
    start, end = trace.start_us, trace.start_us + round(trace.window_sec * 1e6)
    rows = []
    for worker in workers:
        during = steps.filter(
            (pl.col("worker") == worker) & (pl.col("start_us") < end) & (pl.col("end_us") > start)
        )
        for row in during.sort("start_us").iter_rows(named=True):
            window = max(start, row["start_us"]), min(end, row["end_us"])
            mine = activity.filter(worker=worker, step=row["step"], validate=row["validate"])
            rows.append(_idle_in(trace, row, window, mine))
    return rows


def _idle_in(
    trace: TraceAnalysis, row: dict[str, int], window: tuple[int, int], activity: pl.DataFrame
) -> IdleInStep:
    whole = pl.DataFrame({"start_ns": [window[0] * 1000], "end_ns": [window[1] * 1000]})
    idle_ns = int(time_within(whole, trace.idle)[0])
    doing = pl.col("phase").replace_strict(DOING, default=_ELSE)
    clipped = activity.select(
        "request_id",
        doing=doing,
        start_ns=pl.col("from_us").clip(*window) * 1000,
        end_ns=pl.col("to_us").clip(*window) * 1000,
    ).sort("start_ns", "end_ns")
    # A request with concurrent tools waits for them once.
    reach = pl.col("end_ns").cum_max().shift(1).over("request_id", "doing")
    once = clipped.with_columns(start_ns=pl.max_horizontal("start_ns", reach))
    once = once.filter(pl.col("end_ns") > pl.col("start_ns"))
    once = once.with_columns(idle_ns=time_within(once, trace.idle))
    sums = once.group_by("doing").agg(pl.col("idle_ns").sum())
    sums = sums.sort("idle_ns", "doing", descending=[True, False])
    requests = {name: waited / idle_ns for name, waited in sums.iter_rows() if idle_ns and waited}
    overlap = (window[1] - window[0]) / 1e6
    idle = idle_ns / 1e9 / overlap if overlap else 0.0
    return IdleInStep(
        trace.rank,
        row["step"],
        bool(row["validate"]),
        row["worker"],
        overlap,
        idle,
        requests,
        _sentence(trace.rank, row, idle, requests),
    )


def _sentence(rank: str, row: dict[str, int], idle: float, requests: dict[str, float]) -> str:
    step = f"{'validation at step' if row['validate'] else 'step'} {row['step']}"
    counts = [f"{count:.2g} {words}" for words, count in list(requests.items())[:2] if count >= 0.1]
    while_ = f" while, on average, {' and '.join(counts)}" if counts else ""
    return f"in {step} the engine of worker {row['worker']} ({rank}) was idle {idle:.0%}{while_}"
