"""Find parts outside of requests that took long: preprocessing, sorting, building batches, broadcast, ..."""

import math
from collections.abc import Iterator
from typing import Any, Final

import polars as pl

from sglang_instrument.analysis.answers.ledger import STEP, STEP_OF_WORKER
from sglang_instrument.analysis.verdict.effects import (
    Limits,
    find_trend,
    shared_values,
    slow_steps,
    slow_workers,
    without_trend,
)
from sglang_instrument.analysis.verdict.evidence import Evidence
from sglang_instrument.analysis.verdict.finding import Finding, seconds, step_name

_LIMITS: Final = Limits(times=1.5, spread=0.05)
_LEAST_SEC: Final = 1e-3  # what takes less is usual, however its times vary


def find_slow_parts(evidence: Evidence) -> Iterator[Finding]:
    """Yield a finding for each part outside of requests that took far longer than usual."""
    for (part, event), rows in evidence.parts.sort("part", "event").group_by("part", "event", maintain_order=True):
        yield from _of_part(evidence, str(part), str(event), rows)


def _of_part(evidence: Evidence, part: str, event: str, rows: pl.DataFrame) -> Iterator[Finding]:
    usual: Any = rows["sec"].median()
    values = pl.col("sec").clip(lower_bound=_LEAST_SEC).log() - math.log(max(usual, _LEAST_SEC))
    groups = rows.with_columns(value=values)
    shared = shared_values(groups, evidence.windows.join(rows.select(STEP).unique(), on=STEP, how="semi"))
    trend = find_trend(shared)
    flat = without_trend(shared, trend)
    cause = _cause(part)
    if trend is not None:
        grown = rows.join(flat.select(*STEP, "growth"), on=STEP)
        grown = grown.with_columns(excess_sec=pl.col("sec") * (1 - (-pl.col("growth")).exp()))
        lost = evidence.worth(evidence.lost_by_workers(grown))
        if len(lost):
            last = lost.sort("lost_sec").row(-1, named=True)
            sentence = (
                f"{event} grows from step to step, to {trend.times:.1f} times as much; step {last['step']} loses "
                f"{seconds(last['lost_sec'])} by it"
            )
            yield Finding("trend", "run", last["lost_sec"], sentence, event=event, evidence=trend._asdict())
    slow = slow_steps(flat, _LIMITS)
    in_steps = rows.join(slow.select(*STEP, "excess"), on=STEP)
    in_steps = in_steps.with_columns(excess_sec=pl.col("sec") * (1 - (-pl.col("excess")).exp()))
    for row in evidence.worth(evidence.lost_by_workers(in_steps)).join(slow, on=STEP).iter_rows(named=True):
        times = math.exp(row["excess"])
        sentence = (
            f"{step_name(row['step'], row['validate'])}: {event} took {times:.1f} times the usual on most workers; "
            f"{seconds(row['lost_sec'])} lost"
        )
        place = {"step": row["step"], "validate": row["validate"]}
        numbers = {"times": times, "lost_sec": row["lost_sec"]}
        yield Finding(cause, "step", row["lost_sec"], sentence, **place, event=event, evidence=numbers)
    for row in slow_workers(groups, _LIMITS).iter_rows(named=True):
        late = pl.DataFrame([row]).with_columns(excess_sec=pl.col("sec") * (1 - (-pl.col("own")).exp()))
        lost = evidence.worth(evidence.lost_by_workers(late))
        if len(lost):
            lost_sec, times = float(lost["lost_sec"][0]), math.exp(row["own"])
            sentence = (
                f"{step_name(row['step'], row['validate'])}: {event} took {seconds(row['sec'])} on worker "
                f"{row['worker']}, {times:.1f} times as long as on the others; {seconds(lost_sec)} lost"
            )
            place = {name: row[name] for name in STEP_OF_WORKER}
            numbers = {"sec": row["sec"], "times": times, "lost_sec": lost_sec}
            yield Finding(cause, "worker", lost_sec, sentence, **place, event=event, evidence=numbers)


def _cause(part: str) -> str:
    return {"postprocess": "post-processing"}.get(part, part.replace(" ", "-"))
