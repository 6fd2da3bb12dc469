"""Find steps in which a worker has no file, though it has one before and after."""

from typing import Final

from sglang_instrument.analysis.run.losses import missing_files
from sglang_instrument.analysis.run.outside import paths_outside_steps
from sglang_instrument.analysis.verdict.evidence.detector import Findings, NamedCause, detector
from sglang_instrument.analysis.verdict.evidence.finding import Finding, step_name
from sglang_instrument.analysis.verdict.evidence.run_evidence import Evidence

MISSING_FILE: Final = NamedCause(
    "missing-file",
    "worker",
    "a worker has no file in a step, though it has one in an earlier and a later step",
    "`check LOGS` and `status LOGS` say whether that process was reached",
)


@detector(MISSING_FILE)
def find_missing_files(evidence: Evidence) -> Findings:
    """Yield a finding for each missing file: what happened there is not known.

    Where requests flow, a worker writes a file for a step only if a request began with its weights.
    """
    if evidence.flows:
        return
    for step, worker in sorted(missing_files(evidence.files, paths_outside_steps(evidence.files))):
        sentence = (
            f"{step_name(step, False)}: worker {worker} has no file, though steps before and after have one: "
            "what it did is not known"
        )
        yield Finding(MISSING_FILE.name, "worker", 0.0, sentence, step, False, worker)
