"""Lay the traces of engines' profilers beside a run, and say all of it in rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sglang_instrument.analysis.run import Run
    from sglang_instrument.profiling.traces import Analysis
    from sglang_instrument.profiling.traces_run import IdleInStep


def beside_run(found: Analysis, opened: Run) -> list[IdleInStep]:
    """Say how idle engines were in the run's steps that ran at the same time, and what requests did then."""
    import polars as pl

    from sglang_instrument.analysis.steps import worker_steps
    from sglang_instrument.analysis.walls import self_stretches
    from sglang_instrument.profiling.traces_run import idle_in_steps, worker_of

    end = pl.col("start_us") + (pl.col("duration_sec") * 1e6).cast(pl.Int64)
    steps = worker_steps(opened.digest.of_workers()).with_columns(end_us=end)
    rows = []
    for trace in found.traces:
        start = trace.start_us or 0
        during = steps.filter(
            (pl.col("start_us") < start + round(trace.window_sec * 1e6)) & (pl.col("end_us") > start)
        )
        for step, validate in during.select("step", "validate").unique(maintain_order=True).iter_rows():
            spans = opened.read_spans(step=step, validate=validate)
            asked = spans.select(
                *("span", "request_id", "step", "validate", "worker"),
                phase=pl.col("counts_for").cast(pl.String),
            ).drop_nulls("request_id")
            moments = self_stretches(spans).join(asked, on="span")
            this = during.filter(step=step, validate=validate)
            rows += idle_in_steps(trace, this, moments, worker_of(trace, opened.workers))
    return rows


def trace_rows(found: Analysis, joined: Sequence[IdleInStep]) -> dict[str, Any]:
    """Return what `trace analyze --json` prints."""
    answer: dict[str, Any] = {"folder": found.folder, "slow": found.slow, "sentence": found.sentence}
    answer |= {"ranks": found.ranks, "traces": [one.as_json() for one in found.traces]}
    return answer | {"steps": [asdict(one) for one in joined], "unreadable": found.unreadable}
