"""Find a side of the training loop that waits for the other in most steps, and rewards that all wait for.

Where trainer and rollout take turns, one of them always waits: nobody is accused of that.
"""

from collections.abc import Iterator
from typing import Any, Final

import polars as pl

from sglang_instrument.analysis.ledger.loop import Loop, steady
from sglang_instrument.analysis.ledger.loop_lanes import LoopLanes
from sglang_instrument.analysis.verdict.evidence.detector import Findings, NamedCause, detector
from sglang_instrument.analysis.verdict.evidence.effects import Limits, find_shift, floor_of
from sglang_instrument.analysis.verdict.evidence.finding import Finding, seconds
from sglang_instrument.analysis.verdict.evidence.gaps import GAP_LIMITS
from sglang_instrument.analysis.verdict.evidence.run_evidence import LEAST_SEC, OF_STEP, Evidence

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
    NamedCause(
        "staleness-bound",
        "run",
        "from a step on, an asynchronous rollout waited for the trainer in all steps far longer than in all "
        "before, and the trainer's own work took as long as before",
        "look at what lets the rollout run ahead: its bound of staleness, the places of its queue; "
        "`staleness LOGS`, `loop LOGS`",
        not_planted="`sglang_instrument.testing.world` plants it",
    ),
)
BOUND: Final = CAUSES[-1]
_BOUND_LIMITS: Final = Limits(times=1.5, spread=0.05)
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
    if shape == "asynchronous":
        yield from _tighter_bound(evidence, steps)
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


def _tighter_bound(evidence: Evidence, steps: pl.DataFrame) -> Iterator[Finding]:
    """Yield a finding if the rollout waited longer from a step on, though the trainer worked no longer.

    The physical fact: the rollout had servers free and no leave to begin a request. Where the trainer's work
    grew, the rollout waits for that.
    """
    floor_sec = floor_of(evidence.windows)
    known = steps.filter(~pl.col("validate")).drop_nulls(["rollout_waits_sec", "train_sec"])
    waits = known.with_columns(shared=(pl.col("rollout_waits_sec") + floor_sec).log())
    shift = find_shift(waits, _BOUND_LIMITS)
    if shift is None or find_shift(known.with_columns(shared=pl.col("train_sec").log()), GAP_LIMITS):
        return
    first = known["step"].to_list().index(shift.step)
    before, after = (float(part["rollout_waits_sec"].mean()) for part in (known.head(first), known[first:]))  # type: ignore[arg-type]
    took: Any = known["to_next_step_sec"].median()
    lost_sec = after - before
    if lost_sec < max(LEAST_SEC, OF_STEP * took):
        return
    sentence = (
        f"from step {shift.step} on, the rollout waited {seconds(after)} a step for the trainer, where it "
        f"waited {seconds(before)} before, and the trainer's work took as long: it may run less far ahead; "
        f"{seconds(lost_sec)} lost a step"
    )
    numbers = {"first_step": shift.step, "steps": shift.steps, "sec": after, "before_sec": before}
    yield Finding(BOUND.name, "run", lost_sec, sentence, event="loop", evidence=numbers)
