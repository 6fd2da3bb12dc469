"""Find engines that stood still: for a while no call began or ended, and all that ran took so much longer."""

import math
from collections.abc import Iterator
from typing import Any, Final

import polars as pl

from sglang_instrument.analysis.answers.ledger import STEP, STEP_OF_WORKER
from sglang_instrument.analysis.verdict.evidence import Evidence
from sglang_instrument.analysis.verdict.finding import Finding, seconds, step_name

_LEAST_SEC: Final = 2.0
_FEWEST: Final = 3  # calls that ran throughout
_OF_THE_GAP: Final = 0.6  # most calls are longer than usual by at least this share of the standstill
_ALIKE: Final = 2.0  # times the longest gap without such calls


def find_standstills(evidence: Evidence) -> Iterator[Finding]:
    """Yield a finding for each standstill; one that most workers share is the step's."""
    found = _gaps(evidence)
    for _, rows in found.sort("gap_sec", descending=True).group_by(STEP, maintain_order=True):
        everyone = len(evidence.workers.filter(step=rows["step"][0], validate=rows["validate"][0]))
        shared = rows["worker"].n_unique() * 2 > everyone and everyone > 1
        yield from _of_step(evidence, rows, shared)


def _gaps(evidence: Evidence) -> pl.DataFrame:
    """Return the gaps between changes in which most of the running engine calls lost as much time."""
    calls = evidence.calls.with_row_index("row").filter((pl.col("kind") == "engine") & (pl.col("usual_sec") > 0))
    calls = calls.with_columns(excess_sec=pl.col("sec") - pl.col("usual_sec"))
    at = pl.concat(
        [calls.select(*STEP_OF_WORKER, at_us="start_us"), calls.select(*STEP_OF_WORKER, at_us="end_us")]
    )
    at = at.sort(*STEP_OF_WORKER, "at_us").with_columns(to_us=pl.col("at_us").shift(-1).over(STEP_OF_WORKER))
    gaps = at.with_columns(gap_sec=(pl.col("to_us") - pl.col("at_us")) / 1e6)
    gaps = gaps.filter(pl.col("gap_sec") > _LEAST_SEC).rename({"at_us": "from_us"})
    during = gaps.join(calls, on=STEP_OF_WORKER).filter(
        (pl.col("start_us") <= pl.col("from_us")) & (pl.col("end_us") >= pl.col("to_us"))
    )
    lost = pl.col("excess_sec") >= _OF_THE_GAP * pl.col("gap_sec")
    return (
        during.group_by(*STEP_OF_WORKER, "from_us", "to_us", "gap_sec")
        .agg(calls=pl.len(), stuck=lost.mean(), row=pl.col("row"), over=pl.col("excess_sec"))
        .filter((pl.col("calls") >= _FEWEST) & (pl.col("stuck") > 0.5))
    )


def _of_step(evidence: Evidence, rows: pl.DataFrame, shared: bool) -> Iterator[Finding]:
    excess = rows.explode("row", "over").with_columns(
        excess_sec=pl.min_horizontal("over", "gap_sec").clip(lower_bound=0.0)
    )
    requests = evidence.calls["request_id"].gather(excess["row"])
    excess = excess.with_columns(request_id=requests)
    parts = [excess] if shared else [part for _, part in excess.group_by("worker", "from_us", maintain_order=True)]
    for part in parts:
        lost = evidence.worth(evidence.lost_in_requests(part))
        if lost.is_empty():
            continue
        evidence.explain(part["row"], part["excess_sec"])
        yield _finding(part, float(lost["lost_sec"][0]), shared, evidence)


def _finding(part: pl.DataFrame, lost_sec: float, shared: bool, evidence: Evidence) -> Finding:
    first = part.sort("gap_sec").row(-1, named=True)
    begun: Any = evidence.workers.filter(
        step=first["step"], validate=first["validate"], worker=first["worker"]
    )["start_us"].min()
    since = (first["from_us"] - begun) / 1e6
    who = "most workers" if shared else f"worker {first['worker']}"
    calls = part["row"].n_unique()
    sentence = (
        f"{step_name(first['step'], first['validate'])}: the engine of {who} stood still for "
        f"{seconds(first['gap_sec'])} from {seconds(max(since, 0.0))} on; {calls} calls waited; {seconds(lost_sec)} lost"
    )
    numbers = {"from_sec": since, "sec": first["gap_sec"], "calls": calls, "lost_sec": lost_sec}
    place = {"step": first["step"], "validate": first["validate"], "worker": None if shared else first["worker"]}
    scope: Any = "step" if shared else "worker"
    return Finding("standstill", scope, lost_sec, sentence, **place, event="engine", evidence=numbers)
