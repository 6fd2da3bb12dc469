"""Find parts outside of requests that took long: preprocessing, sorting, building batches, broadcast, ..."""

import math
from collections.abc import Iterator
from typing import Any, Final

import polars as pl

from sglang_instrument.analysis.ledger.ledger import STEP, STEP_OF_WORKER
from sglang_instrument.analysis.verdict.evidence.chance import Draws
from sglang_instrument.analysis.verdict.evidence.detector import Findings, NamedCause, detector
from sglang_instrument.analysis.verdict.evidence.effects import excess_of, slow_workers
from sglang_instrument.analysis.verdict.evidence.finding import (
    Finding,
    place_of,
    seconds,
    shared_by,
    times_usual,
    where,
)
from sglang_instrument.analysis.verdict.evidence.outside import PART_LIMITS, StepPart
from sglang_instrument.analysis.verdict.evidence.run_evidence import Evidence
from sglang_instrument.schema import PHASES

_ADVICE: Final = "the event beside the others: `events LOGS{step}{worker}`"
_WORDS: Final = {"postprocess": "post-processing", "late start": "late-start"}
_OF_OTHER_DETECTORS: Final = frozenset({"engine", "tool", "interaction", "reward", "barrier"})
_SIMULATED: Final = frozenset({"preprocess", "postprocess", "broadcast", "cache"})
PARTS: Final = tuple(
    NamedCause(
        _WORDS.get(phase, phase),
        "step, worker",
        "a part outside of requests took at least 1.5 times the usual: on most workers that have it, or on "
        "one beside its peers. The cause is the phase of the part",
        _ADVICE,
        not_planted="" if phase in _SIMULATED else "steps of the simulator have no such part",
    )
    for phase in PHASES
    if phase not in _OF_OTHER_DETECTORS
)
BARRIER: Final = NamedCause(
    "barrier",
    "step",
    "the shortest waits at the step's barriers took at least 1.5 times the usual: nobody waited for a "
    "worker, the barrier itself took long",
    _ADVICE,
    not_planted="workers of the simulator leave a barrier as soon as the last one comes",
)
LATE_START: Final = NamedCause(
    "late-start",
    "worker, step",
    "a worker began its step later than the first one, where its peers did not",
    _ADVICE,
    not_planted="workers of the simulator begin a step at the same time",
)
UNACCOUNTED: Final = NamedCause(
    "unaccounted",
    "step, worker",
    "time that no recorded part covers was at least 1.5 times the usual",
    _ADVICE,
    not_planted="workers of the simulator record all that they do",
)
_CHANCE: Final = 1e-3  # largest allowed probability that any worker takes so long by chance
_FEWEST: Final = 8  # with fewer others, their tail cannot be estimated


@detector(*PARTS, BARRIER, LATE_START, UNACCOUNTED)
def find_slow_parts(evidence: Evidence) -> Findings:
    """Yield a finding for each part outside of requests that took far longer than usual."""
    for part in evidence.outside:
        yield from _slow_steps(evidence, part, part.effects.slow)
        yield from _slow_workers(evidence, part)


def _slow_steps(evidence: Evidence, part: StepPart, slow: pl.DataFrame) -> Iterator[Finding]:
    if slow.is_empty():
        return
    late = excess_of(part.rows.join(slow.select(*STEP, "excess"), on=STEP), floor_sec=part.floor_sec)
    lost = evidence.worth(evidence.lost_by_workers(late)).join(slow, on=STEP).join(evidence.sizes, on=STEP)
    for row in lost.sort(STEP).iter_rows(named=True):
        value = row["shared"] + row["growth"]
        sec, usual_sec = part.sec_at(value), part.sec_at(value - row["excess"])
        sentence = (
            f"{where(row)}: {part.name} took {times_usual(sec, usual_sec, part.floor_sec)}"
            f"{shared_by(row['having'], row['workers'])}; {seconds(row['lost_sec'])} lost"
        )
        yield _finding(part, row, sentence, sec, usual_sec)


def _slow_workers(evidence: Evidence, part: StepPart) -> Iterator[Finding]:
    slow = _not_by_chance(part.rows, slow_workers(part.rows, PART_LIMITS))
    late = excess_of(slow, floor_sec=part.floor_sec)
    lost = evidence.worth(evidence.lost_by_each(late))
    if lost.is_empty():
        return
    for row in lost.join(late, on=STEP_OF_WORKER, maintain_order="left").iter_rows(named=True):
        sec, usual_sec = row["sec"], part.sec_at(row["value"] - row["excess"])
        took = f"took {seconds(sec)} for {part.name}, the others {seconds(usual_sec)}"
        if part.phase == "late start":
            took = f"began {seconds(sec)} later than the first worker"
        sentence = f"{where(row)} {took}; {seconds(row['lost_sec'])} lost"
        yield _finding(part, row, sentence, sec, usual_sec)


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


def _finding(part: StepPart, row: dict[str, Any], sentence: str, sec: float, usual_sec: float) -> Finding:
    place = place_of(row)
    times = sec / max(usual_sec, part.floor_sec)
    return Finding(
        cause=_WORDS.get(part.phase, part.phase),
        scope="worker" if "worker" in place else "step",
        lost_sec=row["lost_sec"],
        sentence=sentence,
        **place,
        event=part.event,
        evidence={"times": times, "sec": sec, "usual_sec": usual_sec},
    )
