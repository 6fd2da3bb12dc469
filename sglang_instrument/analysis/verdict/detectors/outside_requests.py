"""Find parts outside of requests that took long: preprocessing, sorting, building batches, broadcast, ..."""

import math
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import polars as pl

from sglang_instrument.analysis.ledger.ledger import STEP, STEP_OF_WORKER
from sglang_instrument.analysis.verdict.evidence.chance import Draws
from sglang_instrument.analysis.verdict.evidence.effects import (
    Effects,
    Limits,
    excess_of,
    slow_workers,
    step_effects,
)
from sglang_instrument.analysis.verdict.evidence.finding import Finding, place_of, seconds, shared_by, where
from sglang_instrument.analysis.verdict.evidence.run_evidence import LEAST_SEC, Evidence

_LIMITS: Final = Limits(times=1.5, spread=0.05)
_LEAST_SEC: Final = 1e-3  # what takes less is usual, however its times vary
_CHANCE: Final = 1e-3  # largest allowed probability that any worker takes so long by chance
_FEWEST: Final = 8  # with fewer others, their tail cannot be estimated
_NAMES: Final = {
    "unaccounted": "time that no recorded part of {event} covers",
    "barrier": "barriers, without waiting for others,",
}


class _Part(NamedTuple):
    """A part of the workers' steps: `rows` has its seconds, and their logarithm over the usual as `value`."""

    cause: str
    event: str
    rows: pl.DataFrame

    @property
    def name(self) -> str:
        """What sentences call it."""
        return _NAMES.get(self.cause, "{event}").format(event=self.event)


def find_slow_parts(evidence: Evidence) -> Iterator[Finding]:
    """Yield a finding for each part outside of requests that took far longer than usual."""
    spread = pl.col("sec").max() - pl.col("sec").min()
    parts = evidence.parts.filter(spread.over("part", "event") > LEAST_SEC)  # of the others, none matters
    for (cause, event), rows in parts.group_by("part", "event", maintain_order=True):
        sec = pl.col("sec").clip(lower_bound=_LEAST_SEC)
        part = _Part(str(cause), str(event), rows.with_columns(value=(sec / sec.median()).log()))
        effects = step_effects(part.rows, evidence.windows, _LIMITS)
        yield from _growing(evidence, part, effects)
        yield from _slow_steps(evidence, part, effects.slow)
        yield from _slow_workers(evidence, part)


def _growing(evidence: Evidence, part: _Part, effects: Effects) -> Iterator[Finding]:
    trend = effects.trend
    if trend is None:
        return
    grown = excess_of(part.rows.join(effects.flat.select(*STEP, "growth"), on=STEP), "growth")
    lost = evidence.worth(evidence.lost_by_workers(grown))
    if lost.is_empty():
        return
    worst = lost.sort("lost_sec").row(-1, named=True)
    sentence = (
        f"{part.name} grows from step to step, to {trend.times:.1f} times as much; it costs step "
        f"{worst['step']} {seconds(worst['lost_sec'])}"
    )
    yield Finding(
        cause="trend",
        scope="run",
        lost_sec=worst["lost_sec"],
        sentence=sentence,
        event=part.event,
        evidence={**trend._asdict(), "worst_step": worst["step"]},
    )


def _slow_steps(evidence: Evidence, part: _Part, slow: pl.DataFrame) -> Iterator[Finding]:
    late = excess_of(part.rows.join(slow.select(*STEP, "excess"), on=STEP))
    lost = evidence.worth(evidence.lost_by_workers(late)).join(slow, on=STEP).join(evidence.sizes, on=STEP)
    for row in lost.sort(STEP).iter_rows(named=True):
        times = math.exp(row["excess"])
        sentence = (
            f"{where(row)}: {part.name} took {times:.1f} times the usual"
            f"{shared_by(row['having'], row['workers'])}; {seconds(row['lost_sec'])} lost"
        )
        yield _finding(part, row, sentence, {"times": times})


def _slow_workers(evidence: Evidence, part: _Part) -> Iterator[Finding]:
    late = excess_of(_not_by_chance(part.rows, slow_workers(part.rows, _LIMITS)))
    lost = evidence.worth(evidence.lost_by_each(late))
    for row in lost.join(late, on=STEP_OF_WORKER, maintain_order="left").iter_rows(named=True):
        times = math.exp(row["excess"])
        took = f"took {seconds(row['sec'])} for {part.name}, {times:.1f} times as long as the others"
        if part.cause == "late start":
            took = f"began {seconds(row['sec'])} later than the first worker"
        sentence = f"{where(row)} {took}; {seconds(row['lost_sec'])} lost"
        yield _finding(part, row, sentence, {"times": times, "sec": row["sec"]})


def _not_by_chance(rows: pl.DataFrame, slow: pl.DataFrame) -> pl.DataFrame:
    """Return the slow workers whose times are hardly drawn from those of all others.

    Each time is measured against what most workers of its step share. A worker that is slow in a step counts
    neither against itself nor against others that are slow there: one cause may slow several workers.
    """
    if slow.is_empty():
        return slow
    shared = pl.col("value").quantile(0.5, "lower").over(STEP)
    off = rows.with_columns(off=(pl.col("value") - shared).exp())
    chances = {}
    for (worker,), mine in slow.group_by("worker"):
        alike = slow.join(mine, on=STEP, how="semi")
        others = Draws(off.join(alike, on=STEP_OF_WORKER, how="anti")["off"])
        for row in mine.iter_rows(named=True):
            chance = others.chance_to_reach(math.exp(row["excess"]), fewest=_FEWEST)
            chances[row["step"], row["validate"], worker] = chance
    unlikely = [chances[key] * len(rows) < _CHANCE for key in slow.select(STEP_OF_WORKER).iter_rows()]
    return slow.filter(pl.Series(unlikely))


def _finding(part: _Part, row: dict[str, Any], sentence: str, numbers: dict[str, Any]) -> Finding:
    place = place_of(row)
    return Finding(
        cause="post-processing" if part.cause == "postprocess" else part.cause.replace(" ", "-"),
        scope="worker" if "worker" in place else "step",
        lost_sec=row["lost_sec"],
        sentence=sentence,
        **place,
        event=part.event,
        evidence=numbers,
    )
