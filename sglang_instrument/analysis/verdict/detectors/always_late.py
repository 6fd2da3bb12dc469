"""Find workers that begin each step late by about as much, which a clock that is ahead would look like."""

from collections.abc import Iterator
from typing import Any, Final

import polars as pl

from sglang_instrument.analysis.answers.engine.round_trips import ahead_us, process_clocks
from sglang_instrument.analysis.ledger.ledger import STEP, STEP_OF_WORKER
from sglang_instrument.analysis.run.clocks import clock_table
from sglang_instrument.analysis.run.opening import Run
from sglang_instrument.analysis.verdict.evidence.detector import NamedCause, detector
from sglang_instrument.analysis.verdict.evidence.effects import floor_of
from sglang_instrument.analysis.verdict.evidence.finding import Finding, seconds
from sglang_instrument.analysis.verdict.evidence.run_evidence import LEAST_SEC, Evidence

ALWAYS_LATE: Final = NamedCause(
    "always-late",
    "worker",
    "a worker began each step later than the others by about as much, and the engines' records of its calls, "
    "or the barriers that all leave together, show that its clock is not ahead by that",
    "look at what that worker does before a step, and at who sends it its part: `workers LOGS{worker}`",
    not_planted="`sglang_instrument.testing.world` plants it",
)
_FEWEST_STEPS: Final = 3
_ENOUGH_OTHERS: Final = 8  # begins of other workers, from which `late-start` tells what is usual
_TIMES: Final = 3.0  # times as late as any other begin
_OF_ROUND_TRIPS: Final = "round trips"


@detector(ALWAYS_LATE)
def find_always_late(evidence: Evidence) -> Iterator[Finding]:
    """Yield a finding for each worker whose constant lateness is none of its clock.

    The physical fact: a call contains what its server did for it. So the calls of a worker bound how far its
    clock is from that of the servers, whatever it does at the begin of its steps.
    """
    yield from _by_barriers(evidence)
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


def _by_barriers(evidence: Evidence) -> Iterator[Finding]:
    """Yield the workers that begin last in each step, by clocks that barriers tell, where steps are few.

    Barriers that workers leave together show how far their clocks are apart, so that a late begin is none.
    With more steps or workers, `late-start` compares each begin with those of the others.
    """
    clocks = clock_table(evidence.paths.of_workers).filter(pl.col("barriers") >= _FEWEST_STEPS)
    begins = evidence.workers.filter(~pl.col("validate")).drop_nulls("late_sec")
    begins = begins.join(clocks, on="worker", how="semi")
    steps, workers = begins["step"].n_unique(), begins["worker"].n_unique()
    if evidence.flows or steps < _FEWEST_STEPS or workers < 2 or steps * (workers - 1) >= _ENOUGH_OTHERS:
        return
    floor_sec = floor_of(evidence.windows)
    for (worker,), mine in begins.group_by("worker", maintain_order=True):
        others = begins.filter(pl.col("worker") != worker)["late_sec"]
        least_sec, most_sec = (float(values or 0.0) for values in (mine["late_sec"].min(), others.max()))  # type: ignore[arg-type]  # floats
        if least_sec <= _TIMES * (most_sec + floor_sec):
            continue
        lost = evidence.lost_by_each(mine.select(*STEP_OF_WORKER, excess_sec="late_sec"))
        lost_sec: Any = lost["lost_sec"].mean() or 0.0
        if not evidence.worth(lost).is_empty() and lost_sec > LEAST_SEC:
            late_sec = float(mine["late_sec"].median() or 0.0)  # type: ignore[arg-type]  # a float
            yield _finding(int(worker), late_sec, float(lost_sec), len(mine), "barriers")


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


def _finding(worker: int, late_sec: float, lost_sec: float, steps: int, by: str = "calls") -> Finding:
    sentence = (
        f"worker {worker} began {seconds(late_sec)} later than the others in each of {steps} steps, and its "
        f"{by} show that its clock is not ahead; {seconds(lost_sec)} lost a step"
    )
    numbers = {"sec": late_sec, "steps": steps}
    return Finding(
        ALWAYS_LATE.name, "run", lost_sec, sentence, worker=worker, event="late start", evidence=numbers
    )
