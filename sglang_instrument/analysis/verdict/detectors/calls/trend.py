"""Find what grows from step to step: the time of calls, of parts outside of requests, between steps."""

from collections.abc import Iterator
from typing import Final

import polars as pl

from sglang_instrument.analysis.ledger.ledger import STEP
from sglang_instrument.analysis.verdict.evidence.detector import (
    Explained,
    Findings,
    NamedCause,
    Precedence,
    detector,
)
from sglang_instrument.analysis.verdict.evidence.effects import Trend, excess_of
from sglang_instrument.analysis.verdict.evidence.finding import Finding, seconds
from sglang_instrument.analysis.verdict.evidence.outside import StepPart
from sglang_instrument.analysis.verdict.evidence.run_evidence import Evidence
from sglang_instrument.analysis.verdict.evidence.work import UNITS, Work

TREND: Final = NamedCause(
    "trend",
    "run",
    "engine, tools, interactions, rewards, a part or the time between steps [grew](#growth)",
    "look at what piles up from step to step: compare `events LOGS{step}` with the first step",
)


@detector(TREND, precedence=Precedence.GROWTH)
def find_trends(evidence: Evidence) -> Findings:
    """Yield a finding for each kind of work, each part, and the gaps, if it grows and a step loses by it."""
    for kind, work in evidence.work.items():
        yield from _of_work(evidence, kind, work)
    for part in evidence.outside:
        yield from _of_part(evidence, part)
    yield from _of_gaps(evidence)


def _of_work(evidence: Evidence, kind: str, work: Work) -> Iterator[Explained]:
    trend, flat = work.effects.trend, work.effects.flat
    if trend is None:
        return
    growing = flat.filter(pl.col("growth") > 0).select(*STEP, "growth")
    calls = excess_of(work.timed.join(growing, on=STEP), "growth")
    lost = evidence.worth(evidence.lost_in_requests(calls))
    if lost.is_empty():
        return
    training = flat.filter(~pl.col("validate"))["step"]
    worst = lost.sort("lost_sec").row(-1, named=True)
    sentence = (
        f"{kind} time per {UNITS[kind]} grows from step to step: in step {training[-1]} it is "
        f"{trend.times:.1f} times that of step {training[0]}; it costs step {worst['step']} "
        f"{seconds(worst['lost_sec'])}"
    )
    yield Explained(_finding(trend, kind, worst["lost_sec"], worst["step"], sentence), calls)


def _of_part(evidence: Evidence, part: StepPart) -> Iterator[Finding]:
    trend = part.effects.trend
    if trend is None:
        return
    growing = part.rows.join(part.effects.flat.select(*STEP, "growth"), on=STEP)
    grown = excess_of(growing, "growth", part.floor_sec)
    lost = evidence.worth(evidence.lost_by_workers(grown))
    if lost.is_empty():
        return
    worst = lost.sort("lost_sec").row(-1, named=True)
    sentence = (
        f"{part.name} grows from step to step, to {trend.times:.1f} times as much; it costs step "
        f"{worst['step']} {seconds(worst['lost_sec'])}"
    )
    yield _finding(trend, part.event, worst["lost_sec"], worst["step"], sentence)


def _of_gaps(evidence: Evidence) -> Iterator[Finding]:
    """Yield a finding if the last training step loses enough by the growth of the gaps."""
    trend = evidence.gaps.trend
    if trend is None:
        return
    gaps = evidence.gaps
    last = excess_of(gaps.flat, "growth", gaps.floor_sec).filter(~pl.col("validate")).tail(1)
    for row in evidence.worth(last.rename({"excess_sec": "lost_sec"})).iter_rows(named=True):
        sentence = (
            f"the time between steps grows, to {trend.times:.1f} times as much; it costs step {row['step']} "
            f"{seconds(row['lost_sec'])}"
        )
        yield _finding(trend, "between steps", row["lost_sec"], row["step"], sentence)


def _finding(trend: Trend, event: str, lost_sec: float, worst_step: int, sentence: str) -> Finding:
    return Finding(
        cause=TREND.name,
        scope="run",
        lost_sec=lost_sec,
        sentence=sentence,
        event=event,
        evidence={**trend._asdict(), "worst_step": worst_step},
    )
