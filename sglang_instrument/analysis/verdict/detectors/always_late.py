"""Find workers that begin each step late by about as much, which a clock that is ahead would look like."""

from collections.abc import Iterator
from typing import Any, Final

import polars as pl

from sglang_instrument.analysis.answers.engine.round_trips import ahead_us, process_clocks
from sglang_instrument.analysis.ledger.ledger import STEP, STEP_OF_WORKER
from sglang_instrument.analysis.run.opening import Run
from sglang_instrument.analysis.verdict.evidence.detector import NamedCause, detector
from sglang_instrument.analysis.verdict.evidence.finding import Finding, seconds
from sglang_instrument.analysis.verdict.evidence.run_evidence import LEAST_SEC, Evidence

ALWAYS_LATE: Final = NamedCause(
    "always-late",
    "worker",
    "a worker began each step later than the others by about as much, and the engines' records of its calls "
    "show that its clock is not ahead by that",
    "look at what that worker does before a step, and at who sends it its part: `workers LOGS{worker}`",
    not_planted="`sglang_instrument.testing.world` plants it",
)
_FEWEST_STEPS: Final = 3
_OF_ROUND_TRIPS: Final = "round trips"


@detector(ALWAYS_LATE)
def find_always_late(evidence: Evidence) -> Iterator[Finding]:
    """Yield a finding for each worker whose constant lateness is none of its clock.

    The physical fact: a call contains what its server did for it. So the calls of a worker bound how far its
    clock is from that of the servers, whatever it does at the begin of its steps.
    """
    run, aligned = evidence.run, evidence.paths.aligned.filter(~pl.col("validate"))
    if run is None or not (aligned["ahead_us"].fill_null(0) != 0).any():
        return
    denied = _denied(run, aligned)
    if denied.is_empty():
        return
    ends = aligned.join(denied, on="worker").with_columns(done_us=pl.col("end_us") + pl.col("late_us"))
    for (worker,), mine in ends.filter(pl.col("late_us") > 1e6 * LEAST_SEC).group_by(
        "worker", maintain_order=True
    ):
        others = ends.filter(pl.col("worker") != worker).group_by(STEP).agg(others_us=pl.col("done_us").max())
        steps = mine.join(others, on=STEP)
        after = (pl.col("done_us") - pl.col("others_us")).clip(lower_bound=0)
        lost = steps.select(*STEP_OF_WORKER, lost_sec=pl.min_horizontal("late_us", after) / 1e6)
        lost_sec: Any = lost["lost_sec"].mean() or 0.0
        if len(steps) >= _FEWEST_STEPS and not evidence.worth(lost).is_empty() and lost_sec > LEAST_SEC:
            yield _finding(int(worker), float(mine["late_us"][0]) / 1e6, float(lost_sec), len(steps))


def _denied(run: Run, aligned: pl.DataFrame) -> pl.DataFrame:
    """Return by how much workers begin late, of those whose calls tell how far their clocks are ahead.

    Returns:
        worker; late_us: the lead that their begins would mean, less that of their clocks, beside the median
        worker.
    """
    clocks = process_clocks(run)
    known = clocks.filter(pl.col("by").str.starts_with(_OF_ROUND_TRIPS) | (pl.col("by") == "reference"))
    leads = ahead_us(run)
    rows = [
        (name, leads.get(name, 0), round(1e6 * residual))
        for name, residual in known.select("process", "residual_sec").iter_rows()
    ]
    schema = {"name": pl.String, "known_us": pl.Int64, "residual_us": pl.Int64}
    table = pl.DataFrame(rows, schema=schema, orient="row")
    begins = aligned.group_by("worker").agg(pl.col("ahead_us").median())
    begins = begins.with_columns(name=pl.format("worker_{}", "worker")).join(table, on="name")
    late = pl.col("ahead_us").fill_null(0) - pl.col("known_us")
    late = late - late.quantile(0.5, "lower") - pl.col("residual_us")
    return begins.select("worker", late_us=late.clip(lower_bound=0).round().cast(pl.Int64)).sort("worker")


def _finding(worker: int, late_sec: float, lost_sec: float, steps: int) -> Finding:
    sentence = (
        f"worker {worker} began {seconds(late_sec)} later than the others in each of {steps} steps, and its "
        f"calls show that its clock is not ahead; {seconds(lost_sec)} lost a step"
    )
    numbers = {"sec": late_sec, "steps": steps}
    return Finding(
        ALWAYS_LATE.name, "run", lost_sec, sentence, worker=worker, event="late start", evidence=numbers
    )
