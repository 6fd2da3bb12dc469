"""Find engines, tools, interactions and rewards that were slow: in a whole step, on one worker, ever more."""

import math
from collections.abc import Iterator
from typing import Any, Final

import polars as pl

from sglang_instrument.analysis.ledger.ledger import STEP, STEP_OF_WORKER
from sglang_instrument.analysis.verdict.evidence.calls import KINDS
from sglang_instrument.analysis.verdict.evidence.chance import chance_of_so_many, chance_to_reach
from sglang_instrument.analysis.verdict.evidence.effects import (
    Limits,
    Trend,
    excess_of,
    find_trend,
    shared_values,
    slow_steps,
    slow_workers,
    without_trend,
)
from sglang_instrument.analysis.verdict.evidence.finding import Finding, place_of, seconds, where
from sglang_instrument.analysis.verdict.evidence.run_evidence import Evidence

_LIMITS: Final = Limits(times=1.1, spread=0.015)
_CHANCE: Final = 1e-3  # largest allowed probability that random calls make any worker look this slow
_UNITS: Final = {"engine": "token", "tool": "turn", "interaction": "request", "reward": "request"}


def find_slow_work(evidence: Evidence) -> Iterator[Finding]:
    """Yield a finding for each kind of work that was slow in the median of a worker's calls."""
    for kind in KINDS:
        groups = _groups(evidence, kind)
        if groups.is_empty():
            continue
        shared = shared_values(groups, evidence.windows.join(groups, on=STEP, how="semi"))
        trend = find_trend(shared)
        flat = without_trend(shared, trend)
        if trend is not None:
            yield from _growing(evidence, kind, flat, trend)
        yield from _slow_steps(evidence, kind, slow_steps(flat, _LIMITS))
        yield from _slow_workers(evidence, kind)


def _timed(evidence: Evidence, kind: str) -> pl.DataFrame:
    calls = evidence.calls.with_row_index("row").filter(
        (pl.col("kind") == kind) & (pl.col("usual_sec") > 0) & (pl.col("sec") > 0)
    )
    return calls.with_columns(log=(pl.col("sec") / pl.col("usual_sec")).log())


def _groups(evidence: Evidence, kind: str) -> pl.DataFrame:
    """Return the median of the calls of each worker in each step, as a logarithm of times the usual."""
    return (
        _timed(evidence, kind)
        .group_by(STEP_OF_WORKER)
        .agg(value=pl.col("log").median(), reached=pl.col("log").quantile(0.5, "lower"), calls=pl.len())
        .sort(STEP_OF_WORKER)
    )


def _growing(evidence: Evidence, kind: str, flat: pl.DataFrame, trend: Trend) -> Iterator[Finding]:
    growing = flat.filter(pl.col("growth") > 0).select(*STEP, "growth")
    calls = excess_of(_timed(evidence, kind).join(growing, on=STEP), "growth")
    lost = evidence.worth(evidence.lost_in_requests(calls))
    evidence.explain(calls)
    if lost.is_empty():
        return
    training = flat.filter(~pl.col("validate"))["step"]
    worst = lost.sort("lost_sec").row(-1, named=True)
    sentence = (
        f"{kind} time per {_UNITS[kind]} grows from step to step: in step {training[-1]} it is "
        f"{trend.times:.1f} times that of step {training[0]}; step {worst['step']} loses "
        f"{seconds(worst['lost_sec'])} by it"
    )
    yield Finding("trend", "run", worst["lost_sec"], sentence, event=kind, evidence=trend._asdict())


def _slow_steps(evidence: Evidence, kind: str, slow: pl.DataFrame) -> Iterator[Finding]:
    calls = excess_of(_timed(evidence, kind).join(slow.select(*STEP, "excess"), on=STEP))
    lost = evidence.worth(evidence.lost_in_requests(calls)).join(slow, on=STEP)
    evidence.explain(calls.join(lost, on=STEP, how="semi"))
    for row in lost.sort(STEP).iter_rows(named=True):
        times = math.exp(row["excess"])
        sentence = (
            f"{where(row)}: {kind} time per {_UNITS[kind]} was {times:.1f} times the usual on most workers; "
            f"{seconds(row['lost_sec'])} lost"
        )
        yield Finding(
            kind, "step", row["lost_sec"], sentence, **place_of(row), event=kind, evidence={"times": times}
        )


def _slow_workers(evidence: Evidence, kind: str) -> Iterator[Finding]:
    groups, timed = _groups(evidence, kind), _timed(evidence, kind)
    for row in slow_workers(groups, _LIMITS).iter_rows(named=True):
        if _chance(timed, row) * len(groups) >= _CHANCE:
            continue
        mine = timed.filter(*(pl.col(name) == row[name] for name in STEP_OF_WORKER))
        calls = excess_of(mine.with_columns(excess=pl.lit(row["excess"])))
        lost = evidence.worth(evidence.lost_in_requests(calls))
        if lost.is_empty():
            continue
        evidence.explain(calls)
        lost_sec, times = float(lost["lost_sec"][0]), math.exp(row["excess"])
        sentence = (
            f"{where(row)} took {times:.1f} times the {kind} time per {_UNITS[kind]} of the other workers; "
            f"{seconds(lost_sec)} lost"
        )
        numbers = {"times": times, "calls": row["calls"]}
        yield Finding(kind, "worker", lost_sec, sentence, **place_of(row), event=kind, evidence=numbers)


def _chance(timed: pl.DataFrame, row: dict[str, Any]) -> float:
    """Return the probability that most of a worker's calls, drawn from all others, are this slow."""
    shared = timed.group_by(STEP).agg(shared=pl.col("log").median())
    off = timed.join(shared, on=STEP).with_columns(off=pl.col("log") - pl.col("shared"))
    mine = pl.all_horizontal(pl.col(name) == row[name] for name in STEP_OF_WORKER)
    at: Any = shared.filter(step=row["step"], validate=row["validate"])["shared"][0]
    share = chance_to_reach(off.filter(~mine)["off"].exp(), math.exp(row["reached"] - at))
    return chance_of_so_many(row["calls"] // 2 + 1, row["calls"], share)
