"""Summarise each step in one row: its duration, its requests, and what its wall time was spent on."""

from typing import Final

import polars as pl

from sglang_instrument.analysis.answers.steps import STEP, step_table, worker_table
from sglang_instrument.analysis.digests.digest import Digest
from sglang_instrument.analysis.ledger.ledger import Paths, step_ledger, worker_ledger

_OF_STEP: Final = (
    *(*STEP, "workers", "slowest_worker", "duration_sec", "unended"),
    *("requests", "response_tokens"),
    *("p50_sec", "p99_sec", "max_sec", "straggler_share"),
)
_PARTS: Final = ("engine", "tool", "interaction", "reward", "between steps")


def summary_table(digest: Digest, paths: Paths) -> pl.DataFrame:
    """Return one row per step, in order.

    Args:
        digest: Of the steps to show.
        paths: The critical paths of the whole run: a step ends when the next one begins.

    Returns:
        step, validate, workers, slowest_worker, duration_sec, unended, requests, response_tokens, p50_sec,
        p99_sec, max_sec, straggler_share: as in `step_table`; to_next_step_sec: until the next step begins;
        engine_sec, tool_sec, interaction_sec, reward_sec, between_steps_sec, other_sec: what this time was
        spent on along the path that decided it; workers_waited_share: the share of all workers' wall time,
        from 0 to 1, in which one waited for another.
    """
    sec, part = pl.col("sec"), pl.col("part")
    of_parts = [sec.filter(part == name).sum().alias(f"{name.replace(' ', '_')}_sec") for name in _PARTS]
    spent = step_ledger(paths).group_by(STEP).agg(sec.sum().alias("to_next_step_sec"), *of_parts)
    other = pl.col("to_next_step_sec") - pl.sum_horizontal(column.meta.output_name() for column in of_parts)
    waiting = sec.filter(part == "barrier").sum() / sec.sum()
    waits = worker_ledger(paths).group_by(STEP).agg(workers_waited_share=waiting)
    steps = step_table(digest).select(_OF_STEP)
    parts = spent.with_columns(other_sec=other.clip(lower_bound=0.0)).join(waits, on=STEP, how="left")
    return steps.join(parts, on=STEP, how="left", maintain_order="left")


def step_tables(digest: Digest, paths: Paths) -> list[pl.DataFrame]:
    """Return `step_table`, `worker_table`, `step_ledger` and `worker_ledger` of a run."""
    return [step_table(digest), worker_table(digest), step_ledger(paths), worker_ledger(paths)]
