"""Find steps in which a phase of the trainer took long, where rollout and training overlap."""

import math
from typing import Final

import polars as pl

from sglang_instrument.analysis.verdict.evidence.detector import Findings, NamedCause, detector
from sglang_instrument.analysis.verdict.evidence.effects import FEWEST_STEPS, SPREADS, robust_spread
from sglang_instrument.analysis.verdict.evidence.finding import Finding, seconds, step_name, times_usual
from sglang_instrument.analysis.verdict.evidence.gaps import (
    GAP_LIMITS,
    TrainerPhase,
    trainer_phases_that_vary,
)
from sglang_instrument.analysis.verdict.evidence.run_evidence import LEAST_SEC, OF_STEP, Evidence

_TIMES_OF_FEW: Final = 2.0  # times the others, where fewer steps than that have the phase
SLOW_TRAINER: Final = NamedCause(
    "slow-trainer",
    "step",
    "where rollout and training overlap, a phase of the trainer, or its time without a record, took at least "
    "1.2 times what it takes in the other steps that have it",
    "its phases are in trainer_0.jsonl: `loop LOGS`, `events LOGS{step}`",
    not_planted="the simulated trainer trains after its rollout; `sglang_instrument.testing.world` plants it",
)


@detector(SLOW_TRAINER)
def find_slow_trainer(evidence: Evidence) -> Findings:
    """Yield a finding for each phase of the trainer that was long beside the same phase in other steps.

    The physical fact: the phase itself took longer. Where training goes on beside the rollout, there is no
    gap between steps to be seen; `between-steps` tells of the other loops.
    """
    if not evidence.gaps.overlaps:
        return
    for phase in trainer_phases_that_vary(evidence.paths, LEAST_SEC):
        for row in _slow(phase).iter_rows(named=True):
            took = times_usual(row["sec"], row["usual_sec"], phase.floor_sec)
            sentence = (
                f"{step_name(row['step'], False)}: {phase.name} took {took}; the trainer lost "
                f"{seconds(row['lost_sec'])}"
            )
            yield Finding(
                SLOW_TRAINER.name,
                "step",
                row["lost_sec"],
                sentence,
                step=row["step"],
                event="between steps" if phase.name != phase.event else phase.event,
                evidence={"sec": row["sec"], "usual_sec": row["usual_sec"]},
            )


def _slow(phase: TrainerPhase) -> pl.DataFrame:
    """Return the steps in which a phase was long, with `lost_sec`; those of a lasting shift are none.

    Beside the last step no rollout goes on, so that a phase seen there alone may have been hidden elsewhere.
    """
    is_seen = pl.col("usual_sec").is_not_null() | (pl.col("step") < phase.last_step)
    rows = phase.rows.filter(is_seen)
    if rows.is_empty():
        return rows.with_columns(lost_sec=pl.lit(0.0))
    rows = rows.with_columns(usual_sec=pl.col("usual_sec").fill_null(0.0) * pl.col("growth").exp())
    times = ((pl.col("sec") + phase.floor_sec) / (pl.col("usual_sec") + phase.floor_sec)).log()
    rows = rows.with_columns(times=times, lost_sec=pl.col("sec") - pl.col("usual_sec"))
    spread = robust_spread(rows["times"] - (rows["times"].median() or 0.0), GAP_LIMITS.spread)
    least = max(SPREADS * spread, math.log(GAP_LIMITS.times))
    if 1 < len(rows) < FEWEST_STEPS:  # a spread of two or three tells nothing
        least = math.log(_TIMES_OF_FEW)
        rows = rows.sort("sec", "step", descending=True).head(1)
    least_sec = max(LEAST_SEC, OF_STEP * phase.step_sec)
    return rows.filter((pl.col("times") > least) & (pl.col("lost_sec") > least_sec))
