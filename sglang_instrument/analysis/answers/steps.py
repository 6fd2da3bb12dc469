"""Show how long each step took, per worker and over all workers."""

from typing import Final

import polars as pl

from sglang_instrument.analysis.digests.digest import Digest
from sglang_instrument.analysis.timing.lanes import ROUNDING_US
from sglang_instrument.schema import PHASES

STEP: Final = ["step", "validate"]
STEP_OF_WORKER: Final = [*STEP, "worker"]
_OF_ONE_PROCESS: Final = ("duration_sec", "unaccounted_sec", "barrier_sec", "busy_sec")
_FRONT: Final = (
    *("step", "validate", "worker", "workers", "slowest_worker", "duration_sec", "unended", "busy_sec"),
)


def step_table(digest: Digest) -> pl.DataFrame:
    """Return one row per step, in order, training before validation.

    Args:
        digest: Of the steps to show, such as `Run.digest`; intervals need training and validation.

    Returns:
        step, validate: Which step.
        workers: The number of workers.
        slowest_worker: The one with the largest `busy_sec`; a barrier makes all durations equal.
        duration_sec: The longest of the workers' durations.
        unended: Whether a worker did not end it as far as the log goes; its time is that until then.
        busy_sec: The longest of the workers' durations without their time at barriers.
        interval_sec: From this start to that of the next step or validation of `digest`; null for the last
            of a launch.
        unaccounted_sec: Time of the slowest worker's step that no part of the step covers.
        requests, response_tokens: Their number, null if the run logs none; the tokens that the model wrote,
            null if not logged.
        p50_sec, p99_sec, max_sec: Of the requests' durations, interpolated linearly.
        straggler_share: 1 - t80 / t100, the share of time in which the last 20 % of the requests run; t80 and
            t100 are the seconds from their worker's start of the step until 80 % and all of them are done.
        share_<phase>: The phase's share, from 0 to 1, of all workers' time, by `steps_sec` and `counts_for`.
        start_us: Earliest start, on the clock of that worker's host.
    """
    digest = digest.of_workers()
    workers = worker_steps(digest)
    steps = workers.group_by(STEP).agg(
        *_phase_shares(),
        workers=pl.col("worker").n_unique(),
        slowest_worker=_of_slowest("worker"),
        unaccounted_sec=_of_slowest("unaccounted_sec"),
        busy_sec=pl.col("busy_sec").max(),
        duration_sec=pl.col("duration_sec").max(),
        start_us=pl.col("start_us").min(),
        launch=pl.col("launch").max(),
        unended=_any("unended"),
    )
    return _finished(steps, digest, workers, STEP)


def worker_table(digest: Digest) -> pl.DataFrame:
    """Return one row per step and worker, with the columns of `step_table` for this worker alone."""
    digest = digest.of_workers()
    workers = worker_steps(digest)
    alone = workers.group_by(STEP_OF_WORKER).agg(
        *_phase_shares(),
        *(
            pl.col(name).first()
            for name in ("start_us", "launch", "duration_sec", "unended", "unaccounted_sec", "busy_sec")
        ),
    )
    return _finished(alone, digest, workers, STEP_OF_WORKER)


def worker_steps(digest: Digest) -> pl.DataFrame:
    """Return start, launch, duration, end, unaccounted time and time without barriers of each worker's step.

    Of several processes of one rank that run at the same time, the one that was busy longest counts, as it
    does of workers; what ran before and after them is added. `wall_<phase>` and `processes_sec`, their sum,
    are those of all its processes.
    """
    busy = (pl.col("duration_sec") - pl.col("barrier_sec")).clip(lower_bound=0.0)
    steps = digest.steps.with_columns(busy_sec=busy, processes_sec="duration_sec")
    steps = steps.sort(*STEP_OF_WORKER, "start_us")
    earlier = pl.col("end_us").cum_max().shift(1).over(STEP_OF_WORKER)
    steps = steps.with_columns(period=(pl.col("start_us") >= earlier - ROUNDING_US).fill_null(True).cum_sum())
    by_busy = [pl.col(name).sort_by("busy_sec").last() for name in _OF_ONE_PROCESS]
    sums = [name for name in steps.columns if name.startswith("wall_") or name == "processes_sec"]
    of_rank = [pl.col("start_us").min(), pl.col("launch").max(), _any("unended"), pl.col(sums).sum()]
    periods = steps.group_by(*STEP_OF_WORKER, "period").agg(*of_rank, *by_busy)
    return periods.group_by(STEP_OF_WORKER).agg(*of_rank, pl.col(_OF_ONE_PROCESS).sum()).sort(STEP_OF_WORKER)


def _of_slowest(column: str) -> pl.Expr:
    """Return the value of the worker that was busy longest: it is the last to reach the end of the step."""
    return pl.col(column).sort_by("busy_sec", "worker", descending=[True, False]).first()


def _any(column: str) -> pl.Expr:
    """Return whether a flag is true of any row; null if no row tells."""
    return pl.col(column).max().alias(column)


def _finished(steps: pl.DataFrame, digest: Digest, workers: pl.DataFrame, key: list[str]) -> pl.DataFrame:
    """Add interval and requests to steps, or to steps of workers."""
    worker = key[2:]
    steps = steps.sort(*worker, "start_us", *STEP)
    start, launch = (pl.col(name).shift(-1) for name in ("start_us", "launch"))
    if worker:
        start, launch = start.over(worker), launch.over(worker)
    resumed = (launch != pl.col("launch")).fill_null(False)
    interval = pl.when(~resumed).then((start - pl.col("start_us")) / 1e6)
    steps = steps.with_columns(interval_sec=interval).drop("launch")
    steps = steps.join(_request_columns(digest, workers, key), on=key, how="left", maintain_order="left")
    if len(digest.requests):
        steps = steps.with_columns(pl.col("requests").fill_null(0))
    steps = steps.sort("validate", *key[:1], *key[2:])
    front = [name for name in _FRONT if name in steps.columns]
    shares = [f"share_{phase}" for phase in PHASES]
    return steps.select(*front, pl.exclude(*front, *shares), *shares)


def _request_columns(digest: Digest, workers: pl.DataFrame, key: list[str]) -> pl.DataFrame:
    begun = workers.select(*STEP_OF_WORKER, begun_us="start_us")
    requests = digest.requests.select(*STEP_OF_WORKER, "end_us", "duration_sec", "response_tokens")
    requests = requests.join(begun, on=STEP_OF_WORKER)
    done = (pl.col("end_us") - pl.col("begun_us")) / 1e6
    by_80_percent = done.filter(done.rank("ordinal") * 5 >= pl.len() * 4).min()
    duration = pl.col("duration_sec")
    return requests.group_by(key).agg(
        requests=pl.len().cast(pl.Int64),
        response_tokens=pl.when(pl.col("response_tokens").count() > 0).then(pl.col("response_tokens").sum()),
        p50_sec=duration.quantile(0.5, "linear"),
        p99_sec=duration.quantile(0.99, "linear"),
        max_sec=duration.max(),
        straggler_share=pl.when(done.max() > 0).then(1 - by_80_percent / done.max()),
    )


def _phase_shares() -> list[pl.Expr]:
    whole = pl.col("processes_sec").sum()
    return [
        pl.when(whole > 0).then(pl.col(f"wall_{phase}").sum() / whole).otherwise(0.0).alias(f"share_{phase}")
        for phase in PHASES
    ]
