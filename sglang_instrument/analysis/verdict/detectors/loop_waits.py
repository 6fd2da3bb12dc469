"""Find a side of the training loop that waits for the other in most steps, and rewards that all wait for.

Where trainer and rollout take turns, one of them always waits: nobody is accused of that.
"""

from typing import Final

import polars as pl

from sglang_instrument.analysis.ledger.loop import Loop, steady
from sglang_instrument.analysis.ledger.loop_lanes import LoopLanes
from sglang_instrument.analysis.verdict.evidence.detector import Findings, NamedCause, detector
from sglang_instrument.analysis.verdict.evidence.finding import Finding, seconds
from sglang_instrument.analysis.verdict.evidence.run_evidence import LEAST_SEC, Evidence

_NAMED_IF: Final = (
    "[one side of the loop](../how-to/trainer-or-rollout.md) waits for the other for at least 20 % of the "
    "time, in the median step. Never where they take turns: there one always waits"
)
_NOT_PLANTED: Final = "a loop that waits in most of its steps is a shape of a run, not a delay of one step"
CAUSES: Final = (
    NamedCause(
        "trainer-waits",
        "run",
        _NAMED_IF,
        "the rollout decides: `loop LOGS --replicas +1` estimates one more server; its long replies: "
        "`lengths LOGS`, its workers: `workers LOGS`",
        not_planted=_NOT_PLANTED,
    ),
    NamedCause(
        "rollout-waits",
        "run",
        _NAMED_IF,
        "the trainer decides, so that more servers save nothing; its parts: `loop LOGS`",
        not_planted=_NOT_PLANTED,
    ),
    NamedCause(
        "exposed-reward",
        "run",
        "in the median step, nothing but rewards goes on for at least 20 % of the loop's time",
        "compute rewards while other requests run, or in more processes at once: `loop LOGS` has the exposed "
        "and the hidden seconds of each step",
        not_planted=_NOT_PLANTED,
    ),
)
_SHARE: Final = 0.2  # of the loop's time, in the median step
_FEWEST: Final = 3  # steps
_WORDS: Final = {
    "trainer-waits": ("trainer_waits_sec", "the trainer waits for the rollout"),
    "rollout-waits": ("rollout_waits_sec", "the rollout waits for the trainer"),
    "exposed-reward": ("reward_alone_sec", "nothing but rewards goes on for"),
}


@detector(*CAUSES)
def find_loop_waits(evidence: Evidence) -> Findings:
    """Yield a finding for each kind of waiting that takes a large share of most steps."""
    lanes = LoopLanes(evidence.paths, evidence.everything)
    if lanes.role is None or not lanes.has_rollout:
        return
    loop = Loop(lanes)
    shape = loop.shape()
    if shape is None:
        return
    steps = steady(loop.steps(), shape)
    wall = pl.col("to_next_step_sec") - pl.col("validation_sec")
    for cause, (column, words) in _WORDS.items():
        if shape == "synchronous" and cause != "exposed-reward":
            continue
        known = steps.filter(wall > 0).drop_nulls(column)
        sec, share = known.select(pl.col(column).median(), share=(pl.col(column) / wall).median()).row(0)
        if len(known) < _FEWEST or share < _SHARE or sec <= LEAST_SEC:
            continue
        yield Finding(
            cause=cause,
            scope="run",
            lost_sec=sec,
            sentence=f"{words} {seconds(sec)} a step, {share:.0%} of the loop's time",
            event="reward" if cause == "exposed-reward" else "loop",
            evidence={"share": share, "shape": shape, "steps": len(known)},
        )
