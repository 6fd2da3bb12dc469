"""Align the traces of the engines' profilers with a run, and return both as rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from sglang_instrument.analysis.tables.profiling.traces import IDLE_IN_STEPS, RANKS

if TYPE_CHECKING:
    from sglang_instrument.analysis.run.opening import Run
    from sglang_instrument.traces.answers import Analysis, TraceAnalysis
    from sglang_instrument.traces.run import IdleInStep


def beside_run(analysis: Analysis, opened: Run) -> list[IdleInStep]:
    """Return how idle the engines were in the steps that ran meanwhile, and what requests waited for then."""
    import polars as pl

    from sglang_instrument.analysis.answers.engine.round_trips import ahead_us, hosts_ahead_us, of_worker
    from sglang_instrument.analysis.answers.steps import worker_steps
    from sglang_instrument.analysis.timing.wall_time import self_intervals
    from sglang_instrument.traces.run import idle_in_steps, worker_of

    ahead = ahead_us(opened)
    hosts = hosts_ahead_us(opened, ahead)
    start, length = pl.col("start_us") - of_worker(ahead), (pl.col("duration_sec") * 1e6).cast(pl.Int64)
    steps = worker_steps(opened.digest.of_workers()).with_columns(start_us=start, end_us=start + length)
    rows = []
    for analysed in analysis.traces:
        trace = _moved(analysed, hosts.get(analysed.host or "", 0))
        begun = trace.start_us or 0
        during = steps.filter(
            (pl.col("start_us") < begun + round(trace.window_sec * 1e6)) & (pl.col("end_us") > begun)
        )
        for step, validate in during.select("step", "validate").unique(maintain_order=True).iter_rows():
            if (step, validate) in opened.pruned_steps:
                continue
            spans = opened.read_spans(step=step, validate=validate)
            asked = spans.select(
                *("span", "request_id", "step", "validate", "worker"),
                phase=pl.col("counts_for").cast(pl.String),
            ).drop_nulls("request_id")
            moments = self_intervals(spans).join(asked, on="span")
            moments = moments.with_columns(pl.col("from_us", "to_us") - of_worker(ahead))
            this = during.filter(step=step, validate=validate)
            rows += idle_in_steps(trace, this, moments, worker_of(trace, opened.worker_ranks))
    return rows


def _moved(trace: TraceAnalysis, ahead_us: int) -> TraceAnalysis:
    """Return the trace with its times set to the workers' clock."""
    import polars as pl

    if not ahead_us or trace.start_us is None:
        return trace
    idle = trace.idle.with_columns(pl.col("start_ns", "end_ns") - ahead_us * 1000)
    return replace(trace, start_us=trace.start_us - ahead_us, idle=idle)


def trace_rows(analysis: Analysis, joined: Sequence[IdleInStep]) -> dict[str, Any]:
    """Return what `trace --json` prints."""
    answer: dict[str, Any] = {"folder": analysis.folder, "slow": analysis.slow, "sentence": analysis.sentence}
    ranks = RANKS.in_json(analysis.ranks)
    answer |= {"ranks": ranks, "traces": [trace.as_json() for trace in analysis.traces]}
    steps = IDLE_IN_STEPS.in_json(map(asdict, joined))
    return answer | {"steps": steps, "unreadable": analysis.unreadable}
