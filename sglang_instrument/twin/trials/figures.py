"""Measure the rollout of each step of a run: the same way for a record and for its twin."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import polars as pl

from sglang_instrument.analysis.answers.engine.round_trips import ahead_us, of_worker
from sglang_instrument.analysis.answers.routing.server_calls import server_calls

if TYPE_CHECKING:
    from sglang_instrument.analysis.run.opening import Run


@dataclass(frozen=True)
class StepFigures:
    """What the rollout of a step took.

    Attributes:
        step: Its number.
        rollout_sec: From the begin of its first request to the end of its last.
        p50_sec, p99_sec: Of its requests.
        calls, prompt_tokens, cached_tokens, generated_tokens: Sums over the calls of the engine.
        tokens_per_sec: Generated tokens over `rollout_sec`.
        cached_share: Of the prompts' tokens; None where no call tells.
        queue_sec: Mean over calls of the time in the scheduler's queue; None where no call tells.
        call_sec: Mean over calls.
        retractions: Of requests by schedulers; None where none logged them.
    """

    step: int
    rollout_sec: float
    p50_sec: float
    p99_sec: float
    calls: int
    prompt_tokens: int
    cached_tokens: int | None
    generated_tokens: int
    tokens_per_sec: float
    cached_share: float | None
    queue_sec: float | None
    call_sec: float
    retractions: int | None


def figures_of(run: Run) -> dict[int, StepFigures]:
    """Return the figures of each training step with calls of requests, by its number."""
    ahead = of_worker(ahead_us(run))
    requests = (
        run.everything.of_workers()
        .requests.filter(~pl.col("validate"), pl.col("step").is_not_null())
        .group_by("step")
        .agg(
            begin_us=(pl.col("start_us") - ahead).min(),
            end_us=(pl.col("end_us") - ahead).max(),
            p50_sec=pl.col("duration_sec").median(),
            p99_sec=pl.col("duration_sec").quantile(0.99, "linear"),
        )
    )
    known = server_calls(run).filter(~pl.col("validate"), pl.col("step").is_not_null())
    tells = pl.col("cached_tokens").is_not_null()
    calls = (
        known.drop_nulls("request_id")
        .group_by("step")
        .agg(
            pl.col("prompt_tokens").sum(),
            pl.when(tells.any()).then(pl.col("cached_tokens").sum()).alias("cached_tokens"),
            pl.col("prompt_tokens").filter(tells).sum().alias("asked_tokens"),
            pl.col("completion_tokens").sum().alias("generated_tokens"),
            pl.col("queue_sec").mean(),
            pl.col("call_sec").mean(),
            pl.when(pl.col("retractions").is_not_null().any())
            .then(pl.col("retractions").sum())
            .alias("retractions"),
            calls=pl.len(),
        )
    )
    figures = {}
    for row in requests.join(calls, on="step", how="inner").sort("step").iter_rows(named=True):
        rollout_sec = (row.pop("end_us") - row.pop("begin_us")) / 1e6
        asked = row.pop("asked_tokens")
        figures[row["step"]] = StepFigures(
            **row,
            rollout_sec=rollout_sec,
            tokens_per_sec=row["generated_tokens"] / rollout_sec if rollout_sec else 0.0,
            cached_share=row["cached_tokens"] / asked if asked else None,
        )
    return figures
