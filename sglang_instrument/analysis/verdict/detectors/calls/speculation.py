"""Find a fall of what speculative decoding accepts: the policy moves away from the draft model."""

import math
from typing import Final

import polars as pl

from sglang_instrument.analysis.answers.lengths import speculation_table
from sglang_instrument.analysis.ledger.ledger import STEP
from sglang_instrument.analysis.verdict.evidence.detector import (
    Explained,
    Findings,
    NamedCause,
    Precedence,
    detector,
)
from sglang_instrument.analysis.verdict.evidence.effects import excess_of, find_trend, without_trend
from sglang_instrument.analysis.verdict.evidence.finding import Finding, seconds
from sglang_instrument.analysis.verdict.evidence.run_evidence import Evidence

SPECULATION: Final = NamedCause(
    "speculation",
    "run",
    "the tokens that speculative decoding accepts a verification [fell](#growth) over the training steps. "
    "The cost is an estimate: a token takes as many times as long as fewer are accepted",
    "update the draft model along with the policy, draft fewer tokens, or switch it off; "
    "`lengths LOGS --speculation`",
)
_FEWEST: Final = 100  # verifications of a step; with fewer, its number says little


@detector(SPECULATION, precedence=Precedence.ENGINE_DRIFT)
def find_falling_speculation(evidence: Evidence) -> Findings:
    """Yield a finding if the tokens a verification fall over the training steps.

    A token takes as many times as long as fewer are accepted, because each verification is one pass of the
    model. That is the time of the engine's calls that this explains.
    """
    accepted = speculation_table(evidence.digest).filter(pl.col("verifications") >= _FEWEST)
    accepted = evidence.windows.select(STEP).join(accepted, on=STEP, maintain_order="left")
    trend = find_trend(accepted.with_columns(shared=-pl.col("tokens_per_verification").log()))
    if trend is None:
        return
    growing = without_trend(accepted.with_columns(shared=pl.lit(0.0)), trend).filter(pl.col("growth") > 0)
    calls = evidence.calls.filter((pl.col("kind") == "engine") & (pl.col("sec") > 0))
    calls = excess_of(calls.join(growing.select(*STEP, "growth"), on=STEP), "growth")
    lost = evidence.worth(evidence.lost_in_requests(calls))
    if lost.is_empty():
        return
    worst = lost.sort("lost_sec").row(-1, named=True)
    training = accepted.filter(~pl.col("validate"))
    first, last = (training.row(row, named=True) for row in (0, -1))
    before, now = first["tokens_per_verification"], last["tokens_per_verification"]
    sentence = (
        f"speculative decoding accepts less from step to step: {before:.2f} tokens a verification "
        f"in step {first['step']}, {now:.2f} in step {last['step']}; it costs step "
        f"{worst['step']} about {seconds(worst['lost_sec'])}"
    )
    finding = Finding(
        cause=SPECULATION.name,
        scope="run",
        lost_sec=worst["lost_sec"],
        sentence=sentence,
        event="engine",
        evidence={
            "per_step": -trend.per_step,
            "times": math.exp(-trend.per_step * (len(training) - 1)),
            "chance": trend.chance,
            "accepted": now,
            "first_accepted": before,
            "worst_step": worst["step"],
        },
    )
    yield Explained(finding, calls)
