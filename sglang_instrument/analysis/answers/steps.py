"""Show how long each step took, per worker and over all workers."""

from typing import Final

import polars as pl

from sglang_instrument.analysis.digests.digest import Digest
from sglang_instrument.schema import PHASES

STEP: Final = ["step", "validate"]
STEP_OF_WORKER: Final = [*STEP, "worker"]
_FRONT: Final = ("step", "validate", "worker", "workers", "slowest_worker", "duration_sec", "busy_sec")


def step_table(digest: Digest) -> pl.DataFrame:
    """Return one row per step, in order, training before validation.

    Args:
        digest: Of the steps to show, such as `Run.digest`.

    Returns:
        step, validate: Which step.
        workers: The number of workers.
        slowest_worker: The one with the largest `busy_sec`; a barrier makes all durations equal.
        duration_sec: The longest of the workers' durations.
        busy_sec: The longest of the workers' durations without their time at barriers.
        interval_sec: From this start to that of the next step; null for the last of a launch.
        unaccounted_sec: Time of the slowest worker's step that no part of the step covers.
        requests, response_tokens: Their number, and the tokens that the model wrote; null if not logged.
        p50_sec, p99_sec, max_sec: Of the requests' durations, interpolated linearly.
        straggler_share: 1 - t80 / t100, the share of time in which the last 20 % of the requests run; t80 and
            t100 are the seconds from their worker's start of the step until 80 % and all of them are done.
        share_<phase>: The phase's share, from 0 to 1, of all workers' time, by `wall_sec` and `counts_for`.
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
            for name in ("start_us", "launch", "duration_sec", "unaccounted_sec", "busy_sec")
        ),
    )
    return _finished(alone, digest, workers, STEP_OF_WORKER)


def worker_steps(digest: Digest) -> pl.DataFrame:
    """Return start, launch, duration, unaccounted time and time without barriers of each worker's step."""
    sums = [name for name in digest.steps.columns if name.endswith("_sec") or name.startswith("wall_")]
    steps = digest.steps.group_by(STEP_OF_WORKER).agg(
        pl.col("start_us").min(), pl.col("launch").max(), pl.col(sums).sum()
    )
    busy = (pl.col("duration_sec") - pl.col("barrier_sec")).clip(lower_bound=0.0)
    return steps.with_columns(busy_sec=busy).sort(STEP_OF_WORKER)


def _of_slowest(column: str) -> pl.Expr:
    """Return the value of the worker that was busy longest: it is the last to reach the end of the step."""
    return pl.col(column).sort_by("busy_sec", "worker", descending=[True, False]).first()


def _finished(steps: pl.DataFrame, digest: Digest, workers: pl.DataFrame, key: list[str]) -> pl.DataFrame:
    """Add interval and requests to steps, or to steps of workers."""
    by_time = [*key[2:], "validate", "start_us"]
    start, launch = (
        pl.col(name).shift(-1).over([*key[2:], "validate"], order_by="start_us")
        for name in ("start_us", "launch")
    )
    resumed = (launch != pl.col("launch")).fill_null(False)
    interval = pl.when(~resumed).then((start - pl.col("start_us")) / 1e6)
    steps = steps.sort(by_time).with_columns(interval_sec=interval).drop("launch")
    steps = steps.join(_request_columns(digest, workers, key), on=key, how="left", maintain_order="left")
    steps = steps.with_columns(pl.col("requests").fill_null(0)).sort("validate", *key[:1], *key[2:])
    front = [name for name in _FRONT if name in steps.columns]
    shares = [f"share_{phase}" for phase in PHASES]
    return steps.select(*front, pl.exclude(*front, *shares), *shares)


def _request_columns(digest: Digest, workers: pl.DataFrame, key: list[str]) -> pl.DataFrame:
    begun = workers.select(*STEP_OF_WORKER, begun_us="start_us")
    requests = digest.requests.join(begun, on=STEP_OF_WORKER)
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
    whole = pl.col("duration_sec").sum()
    return [
        pl.when(whole > 0).then(pl.col(f"wall_{phase}").sum() / whole).otherwise(0.0).alias(f"share_{phase}")
        for phase in PHASES
    ]
