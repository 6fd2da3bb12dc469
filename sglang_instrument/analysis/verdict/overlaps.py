"""Let the detectors look, and decide which of them explains the time that several could.

This is the one place that decides what overlaps. What records of weight updates explain is no delay of an
engine, and no detector sees it. Detectors look by their precedence: a level sees the calls
without the time that the findings of earlier levels explain, and all detectors of a level see the same calls.
So their order within a level, and the order in which they are given, change nothing. Then they look once more
for what the findings hide.
"""

from collections.abc import Iterable, Sequence
from itertools import groupby

from sglang_instrument.analysis.verdict.detectors import DETECTORS, JOINERS
from sglang_instrument.analysis.verdict.evidence.detector import Detector, Explained, Joiner
from sglang_instrument.analysis.verdict.evidence.finding import Finding
from sglang_instrument.analysis.verdict.evidence.run_evidence import Evidence
from sglang_instrument.analysis.verdict.evidence.servers.held_calls import explained_by_updates
from sglang_instrument.analysis.verdict.hidden import hidden_findings


def findings_in(
    evidence: Evidence, detectors: Iterable[Detector] = DETECTORS, joiners: Sequence[Joiner] = JOINERS
) -> list[Finding]:
    """Return what the detectors find, in the order of their precedence and their names.

    Args:
        evidence: The evidence. It is not changed.
        detectors: The detectors, in any order.
        joiners: What puts one finding in the place of several.
    """
    has_steps = not evidence.windows.is_empty()
    if has_steps and not evidence.update_windows.is_empty():
        evidence = evidence.without([explained_by_updates(evidence)])
    able = (detector for detector in detectors if has_steps or not detector.needs_steps)
    ordered = sorted(able, key=lambda detector: (detector.precedence, detector.name))
    answers, rest = _seen(evidence, ordered)
    findings = [answer.finding if isinstance(answer, Explained) else answer for answer in answers]
    hidden = hidden_findings(evidence, answers, lambda mended: _seen(mended, ordered)[0]) if has_steps else []
    for joiner in joiners if has_steps else ():
        findings = joiner.join(findings, rest)
    return [*findings, *hidden]


def _seen(evidence: Evidence, detectors: Sequence[Detector]) -> tuple[list[Finding | Explained], Evidence]:
    """Return what the detectors find, and the evidence without the time of calls that this explains."""
    answers: list[Finding | Explained] = []
    for _, level in groupby(detectors, key=lambda detector: detector.precedence):
        of_level = [answer for detector in level for answer in detector(evidence)]
        evidence = evidence.without([answer.calls for answer in of_level if isinstance(answer, Explained)])
        answers += of_level
    return answers, evidence
