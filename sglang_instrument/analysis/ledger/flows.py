"""Tell whether requests flow through the workers, or come in batches that workers begin together."""

from typing import Any, Final

import polars as pl

from sglang_instrument.analysis.digests.digest import Digest
from sglang_instrument.analysis.timing.open_spans import integral

TRAINERS: Final = ("trainer", "learner")  # the roles of processes that train, the best first
TRAINS: Final = "other"  # the phase of the trainer's own work; in "generate" it waits for the workers
_MOST: Final = 0.5  # of the steps of workers
_BESIDE: Final = 0.25  # of the trainer's work; hosts' clocks, and a validation, make a smaller share
#: A lead in the begins of steps that is less than so many times its usual deviation is no lead of a clock.
_CONSTANT: Final = 3.0


def flows_of(digest: Digest) -> bool:
    """Return whether requests flow, each counted to the step whose weights it began with.

    Then a step is no batch that workers begin together. Either most of a worker's steps begin before its last
    one ended; or the trainer trains while requests run, and no span of a worker tells of a whole step.

    Args:
        digest: Of the run.
    """
    workers = digest.of_workers()
    steps = workers.steps.filter(~pl.col("validate"))
    key = ["launch", "worker"]
    spans = steps.group_by(*key, "step").agg(pl.col("start_us").min(), pl.col("end_us").max())
    reached = pl.col("end_us").cum_max().shift(1).over(key)
    overlaps = spans.sort(*key, "start_us").select(pl.col("start_us") < reached).to_series()
    share: Any = overlaps.drop_nulls().mean() or 0.0
    if float(share) > _MOST:
        return True
    return not _has_whole_steps(steps) and _share_beside_requests(digest, workers) > _BESIDE


def _has_whole_steps(steps: pl.DataFrame) -> bool:
    """Return whether spans of workers tell of whole steps: something of these is covered by no other span."""
    return float(steps["wall_step"].sum()) > 0


def _share_beside_requests(digest: Digest, workers: Digest) -> float:
    """Return the share of the trainer's own work during which a request runs, each on its own clock."""
    is_work = pl.col("role").is_in(TRAINERS) & (pl.col("phase") == TRAINS)
    work = digest.path.filter(is_work).select("start_us", "end_us").sort("start_us")
    requests = workers.requests.filter(~pl.col("validate")).select("start_us", "end_us").drop_nulls()
    if work.is_empty() or requests.is_empty():
        return 0.0
    begin, end = (work[name].to_numpy() for name in ("start_us", "end_us"))
    running = integral(requests["start_us"].to_numpy(), requests["end_us"].to_numpy(), union=True)
    total = float((end - begin).sum())
    return float((running(end) - running(begin)).sum()) / total if total else 0.0


def lead_of_begins(flows: bool) -> pl.Expr:
    """Return by how many microseconds the clock of a worker is ahead, as the begins of its steps tell.

    A clock's lead is constant: a worker that begins its steps sometimes more and sometimes less after the
    others begins late, and where requests flow, steps do not begin together at all.

    Args:
        flows: As `flows_of` returns it.

    Returns:
        An expression over `worker` and after_us: how much after the other workers it began each step.
    """
    usual = pl.lit(0.0) if flows else pl.col("after_us").median()
    varies = _CONSTANT * (pl.col("after_us") - usual).abs().median() > usual.abs()
    return pl.when(varies).then(0.0).otherwise(usual).over("worker").round().cast(pl.Int64)
