"""Find samples staler than the trainer allows."""

from typing import Final

import polars as pl

from sglang_instrument.analysis.answers.asynchronous.fates import USED, logs_consumption
from sglang_instrument.analysis.answers.asynchronous.staleness import with_staleness
from sglang_instrument.analysis.verdict.evidence.detector import Findings, NamedCause, detector
from sglang_instrument.analysis.verdict.evidence.finding import Finding
from sglang_instrument.analysis.verdict.evidence.run_evidence import Evidence

STALE_SAMPLES: Final = NamedCause(
    "stale-samples",
    "run",
    "a step took samples that are more versions old than the trainer allows, by "
    "[`staleness`](../how-to/staleness.md)",
    "drop them before training, or let fewer requests begin ahead: `staleness LOGS{step}`",
    not_planted="the simulated trainer trains on each sample in the step that made it",
)


@detector(STALE_SAMPLES)
def find_stale_samples(evidence: Evidence) -> Findings:
    """Yield a finding if samples were over the limit."""
    if not logs_consumption(evidence.everything):
        return
    used = with_staleness(evidence.fates.filter(pl.col("fate") == USED))
    over = used.filter("over")
    if over.is_empty():
        return
    worst = over.sort("staleness", "trained_step", descending=[True, False]).row(0, named=True)
    known = used["over"].count()
    limit = "1 version" if worst["max_staleness"] == 1 else f"{worst['max_staleness']} versions"
    sentence = (
        f"{len(over):,} of {known:,} samples were staler than the trainer allows: up to {worst['staleness']} "
        f"versions in step {worst['trained_step']}, allowed: {limit}"
    )
    numbers = {
        "samples": len(over),
        "of": known,
        "staleness": worst["staleness"],
        "max_staleness": worst["max_staleness"],
        "worst_step": worst["trained_step"],
        "request_id": worst["request_id"],
    }
    yield Finding(STALE_SAMPLES.name, "run", 0.0, sentence, evidence=numbers)
