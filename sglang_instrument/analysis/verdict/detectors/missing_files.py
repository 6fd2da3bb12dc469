"""Find steps in which a worker has no file, though it has one before and after."""

from collections.abc import Iterator

from sglang_instrument.analysis.run.losses import missing_files
from sglang_instrument.analysis.run.outside import paths_outside_steps
from sglang_instrument.analysis.verdict.evidence.finding import Finding, step_name
from sglang_instrument.analysis.verdict.evidence.run_evidence import Evidence


def find_missing_files(evidence: Evidence) -> Iterator[Finding]:
    """Yield a finding for each missing file: what happened there is not known."""
    for step, worker in sorted(missing_files(evidence.files, paths_outside_steps(evidence.files))):
        sentence = (
            f"{step_name(step, False)}: worker {worker} has no file, though steps before and after have one: "
            "what it did is not known"
        )
        yield Finding("missing-file", "worker", 0.0, sentence, step, False, worker)
