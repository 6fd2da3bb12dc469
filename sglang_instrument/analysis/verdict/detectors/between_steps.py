"""Find gaps between steps that were longer than usual, and what the trainer did in them."""

import math
from collections.abc import Iterator
from typing import Any, Final

import polars as pl

from sglang_instrument.analysis.ledger.ledger import NOT_RECORDED, between_steps
from sglang_instrument.analysis.verdict.evidence.effects import (
    Limits,
    excess_of,
    find_trend,
    slow_steps,
    without_trend,
)
from sglang_instrument.analysis.verdict.evidence.finding import Finding, place_of, seconds, where
from sglang_instrument.analysis.verdict.evidence.run_evidence import Evidence

_LIMITS: Final = Limits(times=1.2, spread=0.03)
_LEAST_SEC: Final = 0.1


def find_gaps_between_steps(evidence: Evidence) -> Iterator[Finding]:
    """Yield a finding for each gap that was out of the ordinary, and one if they grow."""
    sec = (pl.col("next_us") - pl.col("done_us")) / 1e6
    gaps = evidence.windows.with_columns(sec=sec).filter(pl.col("sec") > _least(evidence))
    shared = gaps.with_columns(shared=pl.col("sec").clip(lower_bound=_LEAST_SEC).log())
    trend = find_trend(shared)
    flat = without_trend(shared, trend)
    if trend is not None:
        last = excess_of(flat, "growth").filter(~pl.col("validate")).row(-1, named=True)
        sentence = (
            f"the time between steps grows, to {trend.times:.1f} times as much; step {last['step']} loses "
            f"{seconds(last['excess_sec'])} by it"
        )
        numbers = trend._asdict()
        yield Finding("trend", "run", last["excess_sec"], sentence, event="between steps", evidence=numbers)
    slow = excess_of(slow_steps(flat, _LIMITS)).rename({"excess_sec": "lost_sec"})
    told = between_steps(evidence.everything)
    for row in evidence.worth(slow).iter_rows(named=True):
        event = _longest(told.filter(step=row["step"], validate=row["validate"]))
        times = math.exp(row["excess"])
        sentence = (
            f"after {where(row)}, {seconds(row['sec'])} passed until the next began, {times:.1f} times the "
            f"usual; {f'most of it in {event}' if event else 'the trainer wrote no record of it'}; "
            f"{seconds(row['lost_sec'])} lost"
        )
        numbers = {"sec": row["sec"], "times": times}
        lost_sec = row["lost_sec"]
        yield Finding(
            *("between-steps", "step", lost_sec, sentence), **place_of(row), event=event, evidence=numbers
        )


def _least(evidence: Evidence) -> float:
    """Return the shortest gap that counts: where steps overlap, short ones come and go by chance."""
    took: Any = evidence.windows.select((pl.col("done_us") - pl.col("begin_us")).median()).item()
    return float(took or 0.0) / 1e6 if (evidence.windows["overlap_sec"] > 0).any() else 0.0


def _longest(parts: pl.DataFrame) -> str | None:
    """Return the trainer's phase that took longest, unless it took less than what nobody recorded."""
    if parts.is_empty():
        return None
    longest = str(parts.sort("sec")["event"][-1])
    return None if longest == NOT_RECORDED else longest
