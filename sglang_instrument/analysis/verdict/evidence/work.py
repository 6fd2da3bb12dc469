"""Measure how slow the work of workers was for its kind: the median of their calls over the usual time."""

from typing import Final, NamedTuple

import polars as pl

from sglang_instrument.analysis.ledger.ledger import STEP_OF_WORKER
from sglang_instrument.analysis.verdict.evidence.calls import KINDS
from sglang_instrument.analysis.verdict.evidence.effects import Effects, Limits, step_effects

#: Times the usual of its kind, from which on a call is far longer than others.
FAR_TIMES: Final = 3.0
WORK_LIMITS = Limits(times=1.1, spread=0.015)
#: What the sentences count the time of a kind of work by.
UNITS = {"engine": "token", "tool": "turn", "interaction": "request", "reward": "request"}


class Work(NamedTuple):
    """The calls of a kind of work.

    Attributes:
        timed: As `timed_calls` returns them.
        medians: `worker_medians` of them.
        effects: What most workers of a step share.
    """

    timed: pl.DataFrame
    medians: pl.DataFrame
    effects: Effects

    @classmethod
    def of(cls, timed: pl.DataFrame, order: pl.DataFrame) -> "Work":
        """Return the work of some calls; `order` has the steps in the order of time."""
        medians = worker_medians(timed)
        return cls(timed, medians, step_effects(medians, order, WORK_LIMITS))


def work_of(calls: pl.DataFrame, order: pl.DataFrame) -> dict[str, Work]:
    """Return each kind of work that a run has.

    Args:
        calls: `Evidence.calls`.
        order: The steps in the order of time.
    """
    kinds = {kind: timed_calls(calls, kind) for kind in KINDS}
    return {kind: Work.of(timed, order) for kind, timed in kinds.items() if not timed.is_empty()}


def timed_calls(calls: pl.DataFrame, kind: str) -> pl.DataFrame:
    """Return the calls of a kind with `log`: the logarithm of their time over the usual."""
    timed = calls.filter((pl.col("kind") == kind) & (pl.col("usual_sec") > 0) & (pl.col("sec") > 0))
    return timed.with_columns(log=(pl.col("sec") / pl.col("usual_sec")).log())


def worker_medians(timed: pl.DataFrame) -> pl.DataFrame:
    """Return the median of the calls of each worker in each step, as a logarithm of times the usual.

    Args:
        timed: As `timed_calls` returns them.
    """
    return (
        timed.group_by(STEP_OF_WORKER)
        .agg(value=pl.col("log").median(), reached=pl.col("log").quantile(0.5, "lower"), calls=pl.len())
        .sort(STEP_OF_WORKER)
    )
