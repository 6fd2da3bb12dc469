"""Find engines, tools, interactions and rewards that were slow: in a whole step, on one worker, ever more."""

import math
from collections.abc import Iterator
from typing import Final

import polars as pl

from sglang_instrument.analysis.ledger.ledger import STEP, STEP_OF_WORKER
from sglang_instrument.analysis.verdict.evidence.calls import KINDS
from sglang_instrument.analysis.verdict.evidence.chance import Draws, chance_of_so_many
from sglang_instrument.analysis.verdict.evidence.effects import (
    Effects,
    Limits,
    excess_of,
    slow_workers,
    step_effects,
)
from sglang_instrument.analysis.verdict.evidence.finding import Finding, place_of, seconds, shared_by, where
from sglang_instrument.analysis.verdict.evidence.run_evidence import Evidence

_LIMITS: Final = Limits(times=1.1, spread=0.015)
_CHANCE: Final = 1e-3  # largest allowed probability that random calls make any worker look this slow
_UNITS: Final = {"engine": "token", "tool": "turn", "interaction": "request", "reward": "request"}


def find_slow_work(evidence: Evidence) -> Iterator[Finding]:
    """Yield a finding for each kind of work that was slow in the median of a worker's calls."""
    for kind in KINDS:
        groups = _groups(_timed(evidence, kind))
        if groups.is_empty():
            continue
        effects = step_effects(groups, evidence.windows, _LIMITS)
        yield from _growing(evidence, kind, effects)
        yield from _slow_steps(evidence, kind, effects.slow)
        yield from _slow_workers(evidence, kind)


def _timed(evidence: Evidence, kind: str) -> pl.DataFrame:
    calls = evidence.calls.filter((pl.col("kind") == kind) & (pl.col("usual_sec") > 0) & (pl.col("sec") > 0))
    return calls.with_columns(log=(pl.col("sec") / pl.col("usual_sec")).log())


def _groups(timed: pl.DataFrame) -> pl.DataFrame:
    """Return the median of the calls of each worker in each step, as a logarithm of times the usual."""
    return (
        timed.group_by(STEP_OF_WORKER)
        .agg(value=pl.col("log").median(), reached=pl.col("log").quantile(0.5, "lower"), calls=pl.len())
        .sort(STEP_OF_WORKER)
    )


def _growing(evidence: Evidence, kind: str, effects: Effects) -> Iterator[Finding]:
    trend, flat = effects.trend, effects.flat
    if trend is None:
        return
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
        f"{trend.times:.1f} times that of step {training[0]}; it costs step {worst['step']} "
        f"{seconds(worst['lost_sec'])}"
    )
    yield Finding(
        cause="trend",
        scope="run",
        lost_sec=worst["lost_sec"],
        sentence=sentence,
        event=kind,
        evidence={**trend._asdict(), "worst_step": worst["step"]},
    )


def _slow_steps(evidence: Evidence, kind: str, slow: pl.DataFrame) -> Iterator[Finding]:
    if slow.is_empty():
        return
    calls = excess_of(_timed(evidence, kind).join(slow.select(*STEP, "excess"), on=STEP))
    lost = evidence.worth(evidence.lost_in_requests(calls)).join(slow, on=STEP)
    evidence.explain(calls.join(lost, on=STEP, how="semi"))
    for row in lost.join(evidence.sizes, on=STEP).sort(STEP).iter_rows(named=True):
        times = math.exp(row["excess"])
        sentence = (
            f"{where(row)}: {kind} time per {_UNITS[kind]} was {times:.1f} times the usual"
            f"{shared_by(row['having'], row['workers'])}; {seconds(row['lost_sec'])} lost"
        )
        yield Finding(
            cause=kind,
            scope="step",
            lost_sec=row["lost_sec"],
            sentence=sentence,
            **place_of(row),
            event=kind,
            evidence={"times": times},
        )


def _slow_workers(evidence: Evidence, kind: str) -> Iterator[Finding]:
    timed = _timed(evidence, kind)
    groups = _groups(timed)
    slow = _not_by_chance(timed, groups, slow_workers(groups, _LIMITS))
    if slow.is_empty():
        return
    calls = excess_of(timed.join(slow.select(*STEP_OF_WORKER, "excess"), on=STEP_OF_WORKER))
    lost = evidence.worth(evidence.lost_by_each(evidence.late_by_requests(calls)))
    evidence.explain(calls.join(lost, on=STEP_OF_WORKER, how="semi"))
    for row in lost.join(slow, on=STEP_OF_WORKER, maintain_order="left").iter_rows(named=True):
        lost_sec, times = row["lost_sec"], math.exp(row["excess"])
        sentence = (
            f"{where(row)} took {times:.1f} times the {kind} time per {_UNITS[kind]} of the other workers; "
            f"{seconds(lost_sec)} lost"
        )
        yield Finding(
            cause=kind,
            scope="worker",
            lost_sec=lost_sec,
            sentence=sentence,
            **place_of(row),
            event=kind,
            evidence={"times": times, "calls": row["calls"]},
        )


def _not_by_chance(timed: pl.DataFrame, groups: pl.DataFrame, slow: pl.DataFrame) -> pl.DataFrame:
    """Return the slow workers most of whose calls are hardly drawn from those of all others.

    Each call is measured against what most workers of its step share. A worker that is slow in a step counts
    neither against itself nor against others that are slow there: one cause may slow several workers.
    """
    if slow.is_empty():
        return slow
    shared = groups.group_by(STEP).agg(shared=pl.col("value").quantile(0.5, "lower"))
    off = timed.join(shared, on=STEP).select(*STEP_OF_WORKER, off=(pl.col("log") - pl.col("shared")).exp())
    draws, of_slow = Draws(off["off"]), off.join(slow, on=STEP_OF_WORKER, how="semi")
    chances = {}
    for (worker,), mine in slow.join(shared, on=STEP).group_by("worker"):
        alike = of_slow.join(mine, on=STEP, how="semi")["off"].sort().to_numpy()
        for row in mine.iter_rows(named=True):
            share = draws.chance_to_reach(math.exp(row["reached"] - row["shared"]), alike)
            chance = chance_of_so_many(row["calls"] // 2 + 1, row["calls"], share)
            chances[row["step"], row["validate"], worker] = chance
    unlikely = [chances[key] * len(groups) < _CHANCE for key in slow.select(STEP_OF_WORKER).iter_rows()]
    return slow.filter(pl.Series(unlikely))
