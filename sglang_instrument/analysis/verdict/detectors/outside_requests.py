"""Find parts outside of requests that took long: preprocessing, sorting, building batches, broadcast, ..."""

import math
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import polars as pl

from sglang_instrument.analysis.ledger.ledger import STEP
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
from sglang_instrument.analysis.verdict.evidence.run_evidence import LEAST_SEC, Evidence

_LIMITS: Final = Limits(times=1.5, spread=0.05)
_LEAST_SEC: Final = 1e-3  # what takes less is usual, however its times vary


class _Part(NamedTuple):
    """A part of the workers' steps: `rows` has its seconds, and their logarithm over the usual as `value`."""

    cause: str
    event: str
    rows: pl.DataFrame


def find_slow_parts(evidence: Evidence) -> Iterator[Finding]:
    """Yield a finding for each part outside of requests that took far longer than usual."""
    spread = pl.col("sec").max() - pl.col("sec").min()
    parts = evidence.parts.filter(spread.over("part", "event") > LEAST_SEC)  # of the others, none matters
    for (cause, event), rows in parts.group_by("part", "event", maintain_order=True):
        sec = pl.col("sec").clip(lower_bound=_LEAST_SEC)
        part = _Part(str(cause), str(event), rows.with_columns(value=(sec / sec.median()).log()))
        shared = shared_values(part.rows, evidence.windows.join(rows, on=STEP, how="semi"))
        trend = find_trend(shared)
        flat = without_trend(shared, trend)
        if trend is not None:
            yield from _growing(evidence, part, flat, trend)
        yield from _slow_steps(evidence, part, slow_steps(flat, _LIMITS))
        yield from _slow_workers(evidence, part)


def _growing(evidence: Evidence, part: _Part, flat: pl.DataFrame, trend: Trend) -> Iterator[Finding]:
    grown = excess_of(part.rows.join(flat.select(*STEP, "growth"), on=STEP), "growth")
    lost = evidence.worth(evidence.lost_by_workers(grown))
    if lost.is_empty():
        return
    worst = lost.sort("lost_sec").row(-1, named=True)
    sentence = (
        f"{part.event} grows from step to step, to {trend.times:.1f} times as much; step {worst['step']} "
        f"loses {seconds(worst['lost_sec'])} by it"
    )
    yield Finding("trend", "run", worst["lost_sec"], sentence, event=part.event, evidence=trend._asdict())


def _slow_steps(evidence: Evidence, part: _Part, slow: pl.DataFrame) -> Iterator[Finding]:
    late = excess_of(part.rows.join(slow.select(*STEP, "excess"), on=STEP))
    lost = evidence.worth(evidence.lost_by_workers(late)).join(slow, on=STEP)
    for row in lost.sort(STEP).iter_rows(named=True):
        times = math.exp(row["excess"])
        sentence = (
            f"{where(row)}: {part.event} took {times:.1f} times the usual on most workers; "
            f"{seconds(row['lost_sec'])} lost"
        )
        yield _finding(part, row, row["lost_sec"], sentence, {"times": times})


def _slow_workers(evidence: Evidence, part: _Part) -> Iterator[Finding]:
    late = excess_of(slow_workers(part.rows, _LIMITS))
    for number, row in enumerate(late.iter_rows(named=True)):
        lost = evidence.worth(evidence.lost_by_workers(late[number]))
        if lost.is_empty():
            continue
        lost_sec, times = float(lost["lost_sec"][0]), math.exp(row["excess"])
        sentence = (
            f"{where(row)} took {seconds(row['sec'])} for {part.event}, {times:.1f} times as long as the "
            f"others; {seconds(lost_sec)} lost"
        )
        yield _finding(part, row, lost_sec, sentence, {"times": times, "sec": row["sec"]})


def _finding(
    part: _Part, row: dict[str, Any], lost_sec: float, sentence: str, numbers: dict[str, Any]
) -> Finding:
    cause = "post-processing" if part.cause == "postprocess" else part.cause.replace(" ", "-")
    place = place_of(row)
    scope: Any = "worker" if "worker" in place else "step"
    return Finding(cause, scope, lost_sec, sentence, **place, event=part.event, evidence=numbers)
