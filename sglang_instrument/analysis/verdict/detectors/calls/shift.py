"""Find what took longer from a step on, to the end: calls, parts outside of requests, phases of training."""

from collections.abc import Iterator
from typing import Any, Final

import polars as pl

from sglang_instrument.analysis.ledger.ledger import STEP
from sglang_instrument.analysis.verdict.evidence.detector import (
    Explained,
    Findings,
    NamedCause,
    Precedence,
    detector,
)
from sglang_instrument.analysis.verdict.evidence.effects import Shift, excess_of
from sglang_instrument.analysis.verdict.evidence.finding import Finding, seconds
from sglang_instrument.analysis.verdict.evidence.gaps import trainer_phases_that_vary
from sglang_instrument.analysis.verdict.evidence.outside import StepPart
from sglang_instrument.analysis.verdict.evidence.run_evidence import LEAST_SEC, OF_STEP, Evidence
from sglang_instrument.analysis.verdict.evidence.work import UNITS, Work

SHIFT: Final = NamedCause(
    "shift",
    "run",
    "engine, tools, interactions, rewards, a part or a phase of the trainer took longer in all steps from "
    "one on than in all before it, by at least six times the scatter about both medians",
    "what changed before that step: `events LOGS{step}` beside an earlier step, `status LOGS`",
    not_planted="`sglang_instrument.testing.world` plants it",
)


@detector(SHIFT, precedence=Precedence.GROWTH)
def find_shifts(evidence: Evidence) -> Findings:
    """Yield a finding for each kind of work, part and phase of the trainer, if it took longer from a step on.

    The physical fact: every later step has it and no earlier one, so that it is a change of the run and not
    of a step. What most steps share is then no measure of what is usual.
    """
    for kind, work in evidence.work.items():
        yield from _of_work(evidence, kind, work)
    for part in evidence.outside:
        yield from _of_part(evidence, part)
    yield from _of_trainer(evidence)


def _of_work(evidence: Evidence, kind: str, work: Work) -> Iterator[Explained]:
    shift = work.effects.shift
    if shift is None:
        return
    later = work.effects.flat.filter(pl.col("growth") > 0).select(*STEP, "growth")
    calls = excess_of(work.timed.join(later, on=STEP), "growth")
    lost = evidence.worth(evidence.lost_in_requests(calls))
    if lost.is_empty():
        return
    what = f"{kind} time per {UNITS[kind]} was"
    yield Explained(_finding(evidence, shift, what, kind, lost), calls)


def _of_part(evidence: Evidence, part: StepPart) -> Iterator[Finding]:
    shift = part.effects.shift
    if shift is None:
        return
    later = part.rows.join(part.effects.flat.select(*STEP, "growth"), on=STEP).filter(pl.col("growth") > 0)
    lost = evidence.worth(evidence.lost_by_workers(excess_of(later, "growth", part.floor_sec)))
    if not lost.is_empty():
        yield _finding(evidence, shift, f"{part.name} took", part.event, lost)


def _of_trainer(evidence: Evidence) -> Iterator[Finding]:
    for phase in trainer_phases_that_vary(evidence.paths, LEAST_SEC):
        if phase.shift is None:
            continue
        later = phase.rows.filter(pl.col("growth") > 0).select(*STEP, "sec", "growth")
        later = excess_of(later, "growth", phase.floor_sec).rename({"excess_sec": "lost_sec"})
        if float(later["lost_sec"].mean()) > max(LEAST_SEC, OF_STEP * phase.step_sec):  # type: ignore[arg-type]
            yield _finding(evidence, phase.shift, f"{phase.name} took", phase.event, later)


def _finding(evidence: Evidence, shift: Shift, what: str, event: str, lost: pl.DataFrame) -> Finding:
    mean_sec: Any = lost["lost_sec"].sum() / shift.steps
    before = evidence.windows.filter(~pl.col("validate")).height - shift.steps
    sentence = (
        f"from step {shift.step} on, {what} {shift.times:.1f} times as long as in the {before} steps before; "
        f"{seconds(mean_sec)} lost a step"
    )
    numbers = {"times": shift.times, "first_step": shift.step, "steps": shift.steps}
    return Finding(SHIFT.name, "run", float(mean_sec), sentence, event=event, evidence=numbers)
