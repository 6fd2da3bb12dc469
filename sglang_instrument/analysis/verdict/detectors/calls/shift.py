"""Find what took longer from a step on, to the end: calls, parts outside of requests, phases of training."""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import polars as pl

from sglang_instrument.analysis.ledger.ledger import STEP
from sglang_instrument.analysis.verdict.evidence.calls import CALLS
from sglang_instrument.analysis.verdict.evidence.chance import Array, chance_of_so_many
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
from sglang_instrument.analysis.verdict.evidence.work import FAR_TIMES, UNITS, Work

_FEWEST_OF_A_SIDE: Final = 2  # steps before and after
_FEWEST_FAR: Final = 2  # long calls in each later step
_CHANCE: Final = 1e-4
SHIFT: Final = NamedCause(
    "shift",
    "run",
    "engine, tools, interactions, rewards, a part or a phase of the trainer took longer in all steps from "
    "one on than in all before it, by at least six times the scatter about both medians; or a larger share "
    "of the tools, interactions or rewards took over 3 times the usual than chance explains",
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
        if work.effects.shift is not None:
            yield from _of_work(evidence, kind, work, work.effects.shift)
        elif kind != "engine" and work.effects.trend is None:  # calls of an engine are long for many reasons
            yield from _of_some_calls(evidence, kind, work)
    for part in evidence.outside:
        yield from _of_part(evidence, part)
    yield from _of_trainer(evidence)


def _of_work(evidence: Evidence, kind: str, work: Work, shift: Shift) -> Iterator[Explained]:
    later = work.effects.flat.filter(pl.col("growth") > 0).select(*STEP, "growth")
    calls = excess_of(work.timed.join(later, on=STEP), "growth")
    lost = evidence.worth(evidence.lost_in_requests(calls))
    if lost.is_empty():
        return
    what = f"{kind} time per {UNITS[kind]} was"
    yield Explained(_finding(evidence, shift, what, kind, lost), calls)


def _of_some_calls(evidence: Evidence, kind: str, work: Work) -> Iterator[Explained]:
    """Yield a finding if some calls took far longer in each step from one on, as at one of several backends.

    The median of a step's calls tells nothing of it. How many of them are long is drawn in each step by the
    share before, unless something changed.
    """
    far = (pl.col("sec") > FAR_TIMES * pl.col("usual_sec")) & (
        pl.col("sec") - pl.col("usual_sec") > LEAST_SEC
    )
    timed = work.timed.filter(~pl.col("validate")).with_columns(is_far=far)
    steps = timed.group_by("step").agg(far=pl.col("is_far").sum(), calls=pl.len()).sort("step")
    cut = _cut_by_share(steps["far"].to_numpy(), steps["calls"].to_numpy())
    if cut is None:
        return
    first = int(steps["step"][cut])
    calls = timed.filter(pl.col("is_far") & (pl.col("step") >= first))
    if 2 * calls["worker"].n_unique() <= timed["worker"].n_unique():
        return  # the work of these workers is slow, and not that of a backend of all
    calls = calls.with_columns(excess_sec=pl.col("sec") - pl.col("usual_sec"))
    lost = evidence.worth(evidence.lost_in_requests_or_flow(calls))
    if lost.is_empty():
        return
    later = steps.filter(pl.col("step") >= first)
    times: Any = calls.select((pl.col("sec") / pl.col("usual_sec")).median()).item()
    numbers = {"times": float(times), "first_step": first, "steps": len(later)}
    numbers |= {"calls": len(calls), "of": int(later["calls"].sum())}
    lost_sec = float(lost["lost_sec"].sum()) / len(later)
    sentence = (
        f"from step {first} on, {len(calls)} of {numbers['of']} {CALLS[kind]} took {times:.0f} times the "
        f"usual, {int(steps['far'].sum()) - len(calls)} before; {seconds(lost_sec)} lost a step"
    )
    yield Explained(Finding(SHIFT.name, "run", lost_sec, sentence, event=kind, evidence=numbers), calls)


def _cut_by_share(far: Array, calls: Array) -> int | None:
    """Return before which step the share of long calls grew, if each later one has more than all before."""
    shares = far / calls
    most_before = np.maximum.accumulate(shares)
    least_after, fewest_after = (np.minimum.accumulate(each[::-1])[::-1] for each in (shares, far))
    for cut in range(_FEWEST_OF_A_SIDE, len(far) - _FEWEST_OF_A_SIDE + 1):
        if least_after[cut] <= FAR_TIMES * most_before[cut - 1] or fewest_after[cut] < _FEWEST_FAR:
            continue
        usual = (far[:cut].sum() + 1) / (calls[:cut].sum() + 1)
        chance = chance_of_so_many(int(far[cut:].sum()), int(calls[cut:].sum()), float(usual))
        return cut if chance * len(far) < _CHANCE else None
    return None


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
