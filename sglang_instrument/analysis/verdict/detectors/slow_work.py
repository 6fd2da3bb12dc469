"""Find engines, tools, interactions and rewards that were slow in a whole step, for one worker, or ever more."""

import math
from collections.abc import Iterator
from typing import Any, Final

import polars as pl

from sglang_instrument.analysis.answers.ledger import STEP, STEP_OF_WORKER
from sglang_instrument.analysis.verdict.calls import KINDS
from sglang_instrument.analysis.verdict.effects import (
    Limits,
    Trend,
    find_trend,
    shared_values,
    slow_steps,
    slow_workers,
    without_trend,
)
from sglang_instrument.analysis.verdict.evidence import Evidence
from sglang_instrument.analysis.verdict.finding import Finding, seconds, step_name
from sglang_instrument.analysis.verdict.outliers import chance_to_reach

_LIMITS: Final = Limits(times=1.1, spread=0.015)
_CHANCE: Final = 1e-3  # largest allowed probability that random calls make any worker look this slow
_UNITS: Final = {"engine": "token", "tool": "turn", "interaction": "turn", "reward": "request"}


def find_slow_work(evidence: Evidence) -> Iterator[Finding]:
    """Yield a finding for each kind of work that was slow in the median of a worker's calls."""
    for kind in KINDS:
        yield from _of_kind(evidence, kind)


def _of_kind(evidence: Evidence, kind: str) -> Iterator[Finding]:
    groups = _groups(evidence, kind)
    if groups.is_empty():
        return
    shared = shared_values(groups, evidence.windows)
    trend = find_trend(shared)
    flat = without_trend(shared, trend)
    if trend is not None:
        yield from _growing(evidence, kind, flat, trend)
    slow = slow_steps(flat, _LIMITS)
    yield from _slow_steps(evidence, kind, slow)
    yield from _slow_workers(evidence, kind, _groups(evidence, kind))


def _groups(evidence: Evidence, kind: str) -> pl.DataFrame:
    """Return the median of the calls of each worker in each step, as a logarithm of times the usual."""
    calls = _timed(evidence, kind)
    return calls.group_by(STEP_OF_WORKER).agg(
        value=pl.col("log").median(), reached=pl.col("log").quantile(0.5, "lower"), calls=pl.len()
    )


def _timed(evidence: Evidence, kind: str) -> pl.DataFrame:
    calls = evidence.calls.with_row_index("row").filter(
        (pl.col("kind") == kind) & (pl.col("usual_sec") > 0) & (pl.col("sec") > 0)
    )
    return calls.with_columns(log=(pl.col("sec") / pl.col("usual_sec")).log())


def _excess(calls: pl.DataFrame, log: pl.Expr) -> pl.DataFrame:
    """Return calls with `excess_sec`, how much longer they took for being exp(log) times slower."""
    return calls.with_columns(excess_sec=pl.col("sec") * (1 - (-log).exp()))


def _growing(evidence: Evidence, kind: str, flat: pl.DataFrame, trend: Trend) -> Iterator[Finding]:
    growth = flat.select(*STEP, "growth").filter(pl.col("growth") > 0)
    calls = _excess(_timed(evidence, kind).join(growth, on=STEP), pl.col("growth"))
    lost = evidence.worth(evidence.lost_in_requests(calls))
    evidence.explain(calls["row"], calls["excess_sec"])
    if lost.is_empty():
        return
    last = lost.sort("lost_sec").row(-1, named=True)
    first, final = flat.filter(~pl.col("validate"))["step"][0], flat.filter(~pl.col("validate"))["step"][-1]
    sentence = (
        f"{kind} time per {_UNITS[kind]} grows from step to step: {trend.times:.1f} times as much in step {final} "
        f"as in step {first}; step {last['step']} loses {seconds(last['lost_sec'])} by it"
    )
    numbers = {**trend._asdict(), "lost_sec": last["lost_sec"], "kind": kind}
    yield Finding("trend", "run", last["lost_sec"], sentence, event=kind, evidence=numbers)


def _slow_steps(evidence: Evidence, kind: str, slow: pl.DataFrame) -> Iterator[Finding]:
    calls = _excess(_timed(evidence, kind).join(slow.select(*STEP, "excess"), on=STEP), pl.col("excess"))
    lost = evidence.worth(evidence.lost_in_requests(calls)).join(slow, on=STEP)
    explained = calls.join(lost.select(STEP), on=STEP, how="semi")
    evidence.explain(explained["row"], explained["excess_sec"])
    for row in lost.iter_rows(named=True):
        times = math.exp(row["excess"])
        sentence = (
            f"{step_name(row['step'], row['validate'])}: {kind} time per {_UNITS[kind]} was {times:.1f} times the "
            f"usual on most workers; {seconds(row['lost_sec'])} lost"
        )
        numbers = {"times": times, "lost_sec": row["lost_sec"]}
        place = {"step": row["step"], "validate": row["validate"]}
        yield Finding(kind, "step", row["lost_sec"], sentence, **place, event=kind, evidence=numbers)


def _slow_workers(evidence: Evidence, kind: str, groups: pl.DataFrame) -> Iterator[Finding]:
    slow = slow_workers(groups, _LIMITS)
    timed = _timed(evidence, kind)
    likely = [_chance(timed, row) * len(groups) < _CHANCE for row in slow.iter_rows(named=True)]
    slow = slow.filter(pl.Series(likely, dtype=pl.Boolean))
    for row in slow.iter_rows(named=True):
        mine = timed.filter(*(pl.col(name) == row[name] for name in STEP_OF_WORKER))
        calls = _excess(mine, pl.lit(row["own"]))
        lost = evidence.worth(evidence.lost_in_requests(calls))
        if lost.is_empty():
            continue
        evidence.explain(calls["row"], calls["excess_sec"])
        yield _slow_worker(kind, row, float(lost["lost_sec"][0]))


def _slow_worker(kind: str, row: dict[str, Any], lost_sec: float) -> Finding:
    times = math.exp(row["own"])
    sentence = (
        f"{step_name(row['step'], row['validate'])}: worker {row['worker']} took {times:.1f} times the {kind} time "
        f"per {_UNITS[kind]} of the other workers; {seconds(lost_sec)} lost"
    )
    place = {name: row[name] for name in STEP_OF_WORKER}
    numbers = {"times": times, "calls": row["calls"], "lost_sec": lost_sec}
    return Finding(kind, "worker", lost_sec, sentence, **place, event=kind, evidence=numbers)


def _chance(timed: pl.DataFrame, row: dict[str, Any]) -> float:
    """Return the probability that most of a worker's calls, drawn from all others, are this slow."""
    own = pl.all_horizontal(pl.col(name) == row[name] for name in STEP_OF_WORKER)
    # What the whole step shares is no sign of this worker.
    shared = timed.group_by(STEP).agg(shared=pl.col("log").median())
    others = timed.filter(~own).join(shared, on=STEP).select(pl.col("log") - pl.col("shared")).to_series()
    at: Any = shared.filter(step=row["step"], validate=row["validate"])["shared"][0]
    share = chance_to_reach(others.exp(), math.exp(row["reached"] - float(at)))
    from scipy.stats import binom

    return float(binom.sf(row["calls"] // 2, row["calls"], share))
