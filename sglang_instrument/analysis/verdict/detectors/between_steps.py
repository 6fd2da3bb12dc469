"""Find gaps between steps that were longer than usual, and what the trainer did in them."""

import math
from collections.abc import Iterator
from typing import Final

import polars as pl

from sglang_instrument.analysis.answers.ledger import NOT_RECORDED, STEP, between_steps
from sglang_instrument.analysis.verdict.effects import Limits, find_trend, slow_steps, without_trend
from sglang_instrument.analysis.verdict.evidence import Evidence
from sglang_instrument.analysis.verdict.finding import Finding, seconds, step_name

_LIMITS: Final = Limits(times=1.2, spread=0.03)
_LEAST_SEC: Final = 0.1


def find_gaps_between_steps(evidence: Evidence) -> Iterator[Finding]:
    """Yield a finding for each gap that was out of the ordinary, and one if they grow."""
    gaps = evidence.windows.filter(pl.col("next_us") > pl.col("done_us")).with_columns(
        sec=(pl.col("next_us") - pl.col("done_us")) / 1e6
    )
    shared = gaps.with_columns(shared=pl.col("sec").clip(lower_bound=_LEAST_SEC).log())
    trend = find_trend(shared)
    flat = without_trend(shared, trend)
    if trend is not None:
        last = flat.filter(~pl.col("validate")).row(-1, named=True)
        lost = last["sec"] * (1 - math.exp(-last["growth"]))
        sentence = (
            f"the time between steps grows, to {trend.times:.1f} times as much; step {last['step']} loses "
            f"{seconds(lost)} by it"
        )
        yield Finding("trend", "run", lost, sentence, event="between steps", evidence=trend._asdict())
    slow = slow_steps(flat, _LIMITS).with_columns(lost_sec=pl.col("sec") * (1 - (-pl.col("excess")).exp()))
    parts = between_steps(evidence.everything)
    for row in evidence.worth(slow.drop("wall_sec")).iter_rows(named=True):
        event = _longest(parts.filter(step=row["step"], validate=row["validate"]))
        told = f", most of it in {event}" if event else "; the trainer wrote no record of it"
        sentence = (
            f"after {step_name(row['step'], row['validate'])} it took {seconds(row['sec'])} until the next step "
            f"began, {math.exp(row['excess']):.1f} times the usual{told}; {seconds(row['lost_sec'])} lost"
        )
        place = {"step": row["step"], "validate": row["validate"]}
        numbers = {"sec": row["sec"], "times": math.exp(row["excess"])}
        yield Finding("between-steps", "step", row["lost_sec"], sentence, **place, event=event, evidence=numbers)


def _longest(parts: pl.DataFrame) -> str | None:
    known = parts.filter(pl.col("event") != NOT_RECORDED).sort("sec")
    return None if known.is_empty() or parts["sec"].max() != known["sec"][-1] else str(known["event"][-1])
