"""Decide which proposals are told: none while a fault dominates, none that is small or may save nothing."""

from collections.abc import Collection, Sequence
from typing import Final

from sglang_instrument.analysis.advice.evidence.lever import Lever, ProposedChange
from sglang_instrument.analysis.advice.intervals import Saving
from sglang_instrument.analysis.verdict.evidence.finding import ENDINGS, SYMPTOMS, Finding

#: Of the step: smaller savings are not told.
LEAST_SHARE: Final = 0.03
#: Of the time of all steps: a fault that cost more is to be mended before any setting is changed.
DOMINATES: Final = 0.2


def dominating_fault(
    findings: Sequence[Finding], steps: int, wall_sec: float, mended: Collection[str]
) -> Finding | None:
    """Return the fault that is to be mended before settings are changed; None if no fault dominates.

    Args:
        findings: Of the verdict.
        steps: How many steps the run has.
        wall_sec: Seconds of all of them.
        mended: Causes that a proposed lever answers: they are no reason to be silent.
    """
    cost: dict[str, float] = {}
    first: dict[str, Finding] = {}
    for finding in findings:
        if finding.cause in ENDINGS:
            return finding
        if finding.evidence.get("drawn") or finding.cause in (*SYMPTOMS, *mended):
            continue
        times = finding.evidence.get("steps", steps) if finding.scope == "run" else 1
        cost[finding.cause] = cost.get(finding.cause, 0.0) + finding.lost_sec * times
        first.setdefault(finding.cause, finding)
    cause = max(cost, key=lambda name: cost[name], default=None)
    return first[cause] if cause is not None and cost[cause] > DOMINATES * wall_sec else None


def is_worth_telling(lever: Lever, proposal: ProposedChange, saving: Saving | None, step_sec: float) -> bool:
    """Return whether a proposal is told.

    A simulated one is if its interval is above 0, and its mean at least 3 % of the step; a named one if the
    present setting cost that much.
    """
    if step_sec <= 0:
        return False
    if lever.kind == "named":
        return (proposal.costs_sec or 0.0) >= LEAST_SHARE * step_sec
    return saving is not None and saving.low > 0 and saving.sec >= LEAST_SHARE * step_sec
