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
    "the trainer filtered more groups in a step than in the others, or in all from one on than before, by "
    "chance at most once in 1,000 runs; or "
    "at least a quarter of the generated tokens, and 8 requests, "
    "[never reached the trainer](../how-to/waste.md), by its own records of samples",
    "keep what aborts cut off (partial rollouts), sort out prompts whose groups are filtered, or over-sample "
    "less: `waste LOGS` has the reasons by step",
    not_planted="the simulated trainer takes every sample",
)
_LEAST_SHARE: Final = 0.25  # of the generated tokens
_CHANCE: Final = 1e-3  # largest allowed probability, over all steps
_TIMES: Final = 1.5  # times the usual share
_FEWEST_OF_A_SIDE: Final = 2  # steps, before and after a change
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
    """Yield the steps of which far more groups were filtered than of the others, or all from one on."""
    steps = _judged_groups(evidence)
    took = evidence.windows.filter(~pl.col("validate")).select("step", sec=sec_between("begin_us", "done_us"))
    steps = steps.join(took, on="step", maintain_order="left")
    lasting = _from_a_step_on(steps)
    if lasting is not None:
        yield lasting
        return
    every, made = int(steps["filtered"].sum()), int(steps["of"].sum())
    for row in steps.iter_rows(named=True):
        usual = _usual(every - row["filtered"], made - row["of"])
        if not _is_more(row["filtered"], row["of"], usual, len(steps)):
            continue
        lost_sec = _lost(row["sec"], row["filtered"] / row["of"], usual)
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


def _judged_groups(evidence: Evidence) -> pl.DataFrame:
    """Return how many groups the trainer judged in each of its steps: step, filtered, of."""
    samples = evidence.everything.samples
    decided = samples.select(fate_us="at_us", decided_step="step").drop_nulls().unique("fate_us")
    judged = evidence.fates.drop_nulls("group").filter(pl.col("fate").is_in([FILTERED, USED]))
    judged = judged.join(decided, on="fate_us", how="left", maintain_order="left")
    groups = judged.group_by(pl.coalesce("decided_step", "step").alias("step"), "group").agg(
        filtered=(pl.col("fate") == FILTERED).any()
    )
    return groups.group_by("step").agg(pl.col("filtered").sum(), of=pl.len()).sort("step")


def _from_a_step_on(steps: pl.DataFrame) -> Finding | None:
    """Return a finding if more groups are filtered from a step on, not in the worst of these alone."""
    best: tuple[float, int, float] | None = None
    for first in range(_FEWEST_OF_A_SIDE, len(steps) - _FEWEST_OF_A_SIDE + 1):
        before, after = steps.head(first), steps.tail(-first)
        usual = _usual(int(before["filtered"].sum()), int(before["of"].sum()))
        others = after.sort(pl.col("filtered") / pl.col("of"), "step").head(-1)
        if not _is_more(int(others["filtered"].sum()), int(others["of"].sum()), usual, len(steps)):
            continue
        chance = chance_of_so_many(int(after["filtered"].sum()), int(after["of"].sum()), usual)
        if best is None or chance < best[0]:
            best = chance, first, usual
    if best is None:
        return None
    _, first, usual = best
    after = steps.tail(-first)
    filtered, of = int(after["filtered"].sum()), int(after["of"].sum())
    lost_sec = _lost(float(after["sec"].mean() or 0.0), filtered / of, usual)  # type: ignore[arg-type]  # a float
    sentence = (
        f"from step {after['step'][0]} on, {filtered} of {of} groups were filtered, where {usual:.0%} were "
        f"before, and others were made in their place; about {seconds(lost_sec)} lost a step"
    )
    numbers = {"groups": filtered, "of": of, "usual_share": usual, "first_step": after["step"][0]}
    numbers |= {"steps": len(after)}
    return Finding(THROWN_AWAY.name, "run", lost_sec, sentence, event="groups", evidence=numbers)


def _usual(filtered: int, of: int) -> float:
    return (filtered + 1) / (of + 2)


def _is_more(filtered: int, of: int, usual: float, tries: int) -> bool:
    """Return whether far more groups were filtered than is usual, and chance does not explain it."""
    is_drawn = chance_of_so_many(filtered, of, usual) * tries > _CHANCE
    return not is_drawn and filtered >= _TIMES * usual * of


def _lost(sec: float, share: float, usual: float) -> float:
    """Return about how many seconds a step took longer, in which as many groups are made in their place."""
    return sec * (share - usual) / (1 - usual)
