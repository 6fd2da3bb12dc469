"""Find a rollout that throws a large share of its tokens away, and say for which reasons."""

from typing import Any, Final

from sglang_instrument.analysis.answers.asynchronous.fates import REASONS
from sglang_instrument.analysis.answers.asynchronous.waste import tokens_of, totals, waste_table
from sglang_instrument.analysis.verdict.evidence.detector import Findings, NamedCause, detector
from sglang_instrument.analysis.verdict.evidence.finding import Finding
from sglang_instrument.analysis.verdict.evidence.run_evidence import Evidence

THROWN_AWAY: Final = NamedCause(
    "thrown-away",
    "run",
    "at least a quarter of the generated tokens, and 8 requests, "
    "[never reached the trainer](../how-to/waste.md), by its own records of samples",
    "keep what aborts cut off (partial rollouts), sort out prompts whose groups are filtered, or over-sample "
    "less: `waste LOGS{step}` has the reasons by step",
    not_planted="the simulated trainer takes every sample",
)
_LEAST_SHARE: Final = 0.25  # of the generated tokens
_FEWEST: Final = 8  # requests that were thrown away; of fewer, nothing is said


@detector(THROWN_AWAY)
def find_thrown_away(evidence: Evidence) -> Findings:
    """Yield a finding if a large share of the tokens never reaches the trainer, where it logs its samples."""
    if evidence.everything.samples.is_empty():
        return
    table = waste_table(evidence.fates, evidence.everything)
    total: dict[str, Any] | None = totals(table)
    requests = evidence.fates["fate"].is_in(REASONS).sum()
    if total is None or not total["wasted_tokens"] or requests < _FEWEST:
        return
    generated, wasted = total["generated_tokens"], total["wasted_tokens"]
    if wasted < _LEAST_SHARE * generated:
        return
    by_reason = {name: tokens for name in REASONS if (tokens := total[tokens_of(name)])}
    order = sorted(by_reason, key=lambda name: -by_reason[name])
    why = ", ".join(f"{by_reason[name] / wasted:.0%} {name.replace('_', '-')}" for name in order)
    sentence = f"{wasted / generated:.0%} of the generated tokens were thrown away: {why}"
    worst = table.sort("wasted_tokens", descending=True, nulls_last=True)["step"][0]
    numbers = {"share": wasted / generated, "tokens": by_reason, "requests": requests, "worst_step": worst}
    yield Finding(THROWN_AWAY.name, "run", 0.0, sentence, evidence=numbers)
