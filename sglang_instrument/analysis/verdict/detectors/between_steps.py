"""Find gaps between steps that were longer than usual, and what the trainer did in them."""

import math
from collections.abc import Iterator
from typing import Final

import polars as pl

from sglang_instrument.analysis.ledger.ledger import NOT_RECORDED, STEP, between_steps, trained_meanwhile
from sglang_instrument.analysis.verdict.evidence.effects import (
    Limits,
    Trend,
    excess_of,
    find_trend,
    slow_steps,
    without_trend,
)
from sglang_instrument.analysis.verdict.evidence.finding import Finding, place_of, seconds, where
from sglang_instrument.analysis.verdict.evidence.run_evidence import Evidence

_LIMITS: Final = Limits(times=1.2, spread=0.03)
_LEAST_SEC: Final = 0.1
_OVERLAP: Final = 0.05  # of a step: a shorter overlap is none
_MOST: Final = 0.5  # of the steps


def find_gaps_between_steps(evidence: Evidence) -> Iterator[Finding]:
    """Yield a finding for each gap that was out of the ordinary, and one if they grow."""
    sec = (pl.col("next_us") - pl.col("done_us")) / 1e6
    gaps = evidence.windows.with_columns(sec=sec).filter(pl.col("sec") > _least(evidence))
    shared = gaps.with_columns(shared=pl.col("sec").clip(lower_bound=_LEAST_SEC).log())
    trend = find_trend(shared)
    flat = without_trend(shared, trend)
    if trend is not None:
        yield from _growing(evidence, flat, trend)
    slow = excess_of(slow_steps(flat, _LIMITS)).rename({"excess_sec": "lost_sec"})
    growth = _growth_of_phases(between_steps(evidence.paths), gaps)
    for row in evidence.worth(slow).iter_rows(named=True):
        event = _grown(growth.filter(step=row["step"], validate=row["validate"]))
        times = math.exp(row["excess"])
        sentence = (
            f"after {where(row)}, {seconds(row['sec'])} passed until the next began, {times:.1f} times the "
            f"usual; {f'most of it in {event}' if event else 'the trainer wrote no record of it'}; "
            f"{seconds(row['lost_sec'])} lost"
        )
        yield Finding(
            cause="between-steps",
            scope="step",
            lost_sec=row["lost_sec"],
            sentence=sentence,
            **place_of(row),
            event=event,
            evidence={"sec": row["sec"], "times": times},
        )


def _growing(evidence: Evidence, flat: pl.DataFrame, trend: Trend) -> Iterator[Finding]:
    """Yield a finding if the last training step loses enough by the growth."""
    last = excess_of(flat, "growth").filter(~pl.col("validate")).tail(1)
    for row in evidence.worth(last.rename({"excess_sec": "lost_sec"})).iter_rows(named=True):
        sentence = (
            f"the time between steps grows, to {trend.times:.1f} times as much; it costs step {row['step']} "
            f"{seconds(row['lost_sec'])}"
        )
        yield Finding(
            cause="trend",
            scope="run",
            lost_sec=row["lost_sec"],
            sentence=sentence,
            event="between steps",
            evidence={**trend._asdict(), "worst_step": row["step"]},
        )


def _least(evidence: Evidence) -> float:
    """Return the shortest gap that counts.

    Where rollout and training overlap in most steps, one waits for the other, and short gaps come and go by
    chance.
    """
    took = (pl.col("done_us") - pl.col("begin_us")) / 1e6
    trained = trained_meanwhile(evidence.paths).rename({"sec": "trained_sec"})
    steps = evidence.windows.join(trained, on=STEP, how="left")
    both = pl.col("overlap_sec") + pl.col("trained_sec").fill_null(0.0)
    middle, share = steps.select(took.median(), overlap=(both > _OVERLAP * took).mean()).row(0)
    return float(middle) if share > _MOST else 0.0


def _growth_of_phases(told: pl.DataFrame, gaps: pl.DataFrame) -> pl.DataFrame:
    """Return by how many seconds each of the trainer's phases was longer than in the median gap."""
    every = gaps.select(STEP).join(told.select("event").unique(), how="cross")
    every = every.join(told, on=[*STEP, "event"], how="left").with_columns(pl.col("sec").fill_null(0.0))
    usual = pl.col("sec").median().over("validate", "event")
    return every.select(*STEP, "event", grown_sec=pl.col("sec") - usual)


def _grown(phases: pl.DataFrame) -> str | None:
    """Return the phase that grew most; None if time without a record grew more."""
    event = str(phases.sort("grown_sec", "event")["event"][-1])
    return None if event == NOT_RECORDED else event
