"""Join what was slow in the run's first step on most workers: it was cold, and no worker is at fault."""

from collections.abc import Sequence
from typing import Final

from sglang_instrument.analysis.verdict.evidence.detector import NamedCause, joiner
from sglang_instrument.analysis.verdict.evidence.finding import Finding, seconds, step_name
from sglang_instrument.analysis.verdict.evidence.run_evidence import Evidence

COLD_START: Final = NamedCause(
    "cold-start",
    "step",
    "in the first step of the run the engine or the preprocessing was slow on most workers. It joins all "
    "that was slow there, but for workers that were twice as slow as their peers",
    "no fault: warm the engine up before it, or leave the step out of averages",
)
_WARMS_UP: Final = frozenset(
    {"engine", "preprocess", "tool", "reward", "interaction", "environment", "cache", "weights"}
)
_FAR_FROM_PEERS: Final = 2.0  # times as slow as they: more than workers differ in warming up


@joiner(COLD_START)
def join_cold_start(findings: Sequence[Finding], evidence: Evidence) -> list[Finding]:
    """Return the findings, with one in the place of those of a cold first step.

    A worker that was far slower there than its peers keeps its finding.
    """
    first = evidence.windows.row(0, named=True)
    place = (first["step"], first["validate"])
    cold = [
        finding
        for finding in findings
        if (finding.step, finding.validate) == place
        and finding.cause in _WARMS_UP
        and (finding.scope == "step" or finding.evidence["times"] < _FAR_FROM_PEERS)
    ]
    shared = sorted((part for part in cold if part.scope == "step"), key=lambda part: -part.lost_sec)
    if not any(part.cause in ("engine", "preprocess") for part in shared):
        return list(findings)
    parts = ", ".join(f"{part.event} {part.evidence['times']:.1f} times the usual" for part in shared)
    lost = sum(part.lost_sec for part in shared)
    sentence = f"{step_name(*place)}, the first, was cold: {parts}; {seconds(lost)} lost"
    numbers = {"parts": [{"event": part.event, **part.evidence} for part in shared]}
    joined = Finding(COLD_START.name, "step", lost, sentence, *place, evidence=numbers)
    return [joined, *(finding for finding in findings if finding not in cold)]
