"""Find a rollout that throws a large share of its tokens away, and say for which reasons."""

from collections.abc import Iterator
from typing import Any, Final

import polars as pl

from sglang_instrument.analysis.answers.asynchronous.fates import FILTERED, REASONS, USED
from sglang_instrument.analysis.answers.asynchronous.waste import tokens_of, totals, waste_table
from sglang_instrument.analysis.ledger.intervals import sec_between
from sglang_instrument.analysis.verdict.evidence.chance import chance_of_so_many
from sglang_instrument.analysis.verdict.evidence.detector import Findings, NamedCause, detector
from sglang_instrument.analysis.verdict.evidence.finding import Finding, seconds, step_name
from sglang_instrument.analysis.verdict.evidence.run_evidence import LEAST_SEC, OF_STEP, Evidence

THROWN_AWAY: Final = NamedCause(
    "thrown-away",
    "run, step",
    "the trainer filtered more groups of a step than of the others, by chance at most once in 1,000 runs; or "
    "at least a quarter of the generated tokens, and 8 requests, "
    "[never reached the trainer](../how-to/waste.md), by its own records of samples",
    "keep what aborts cut off (partial rollouts), sort out prompts whose groups are filtered, or over-sample "
    "less: `waste LOGS` has the reasons by step",
    not_planted="the simulated trainer takes every sample",
)
_LEAST_SHARE: Final = 0.25  # of the generated tokens
_CHANCE: Final = 1e-3  # largest allowed probability, over all steps
_TIMES: Final = 1.5  # times the usual share
_FEWEST: Final = 8  # requests that were thrown away; of fewer, nothing is said


@detector(THROWN_AWAY)
def find_thrown_away(evidence: Evidence) -> Findings:
    """Yield a finding if a large share of the tokens never reaches the trainer, where it logs its samples.

    The physical fact: groups that are filtered are made again, so that a step with more of them takes longer.
    """
    if evidence.everything.samples.is_empty():
        return
    yield from _filtered_steps(evidence)
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


def _filtered_steps(evidence: Evidence) -> Iterator[Finding]:
    """Yield the steps of which far more groups were filtered than of the others."""
    judged = evidence.fates.drop_nulls("group").filter(pl.col("fate").is_in([FILTERED, USED]))
    groups = judged.group_by("step", "group").agg(filtered=(pl.col("fate") == FILTERED).any())
    steps = groups.group_by("step").agg(pl.col("filtered").sum(), of=pl.len()).sort("step")
    took = evidence.windows.filter(~pl.col("validate")).select("step", sec=sec_between("begin_us", "done_us"))
    every, made = int(steps["filtered"].sum()), int(steps["of"].sum())
    for row in steps.join(took, on="step", maintain_order="left").iter_rows(named=True):
        others, of_others = every - row["filtered"], made - row["of"]
        usual = (others + 1) / (of_others + 2)
        share = row["filtered"] / row["of"]
        if (
            chance_of_so_many(row["filtered"], row["of"], usual) * len(steps) > _CHANCE
            or share < _TIMES * usual
        ):
            continue
        lost_sec = row["sec"] * (share - usual) / (1 - usual)
        if lost_sec < max(LEAST_SEC, OF_STEP * row["sec"]):
            continue
        sentence = (
            f"{step_name(row['step'], False)}: {row['filtered']} of {row['of']} groups were filtered, where "
            f"{usual:.0%} are usual, and others were made in their place; about {seconds(lost_sec)} lost"
        )
        numbers = {"groups": row["filtered"], "of": row["of"], "usual_share": usual}
        yield Finding(
            THROWN_AWAY.name, "step", lost_sec, sentence, step=row["step"], event="groups", evidence=numbers
        )
