"""Show which workers waited for which at barriers, and how much of the waiting each worker caused."""

import statistics
from dataclasses import dataclass
from typing import Final

import polars as pl

from sglang_instrument.analysis.digests.digest import Digest
from sglang_instrument.analysis.ledger.deciding_paths import Paths
from sglang_instrument.analysis.run.clocks import BARRIER, clock_table, numbered_barriers

_LEFT_TOGETHER_SEC: Final = 0.05
_OF_THE_WAIT: Final = 0.1  # exits may differ by this share of the longest wait
_UNEVEN: Final = 1.1  # with this many times the requests of another worker, the work is not equal


def barrier_table(digest: Digest) -> pl.DataFrame:
    """Return one row per barrier and worker: barriers in order, the first worker to arrive first.

    All workers leave a barrier together, so one that waited longer by t arrived earlier by t: no clocks are
    compared.

    Returns:
        step, validate, barrier, worker: Which.
        arrival_sec: Seconds after the first worker arrived.
        wait_sec: Its wait.
        caused_wait_sec: Its share of the time between the first and the last arrival: the waiting at each
            time is split equally over the workers still missing (the Shapley value of the airport game).
        possible_saving_sec: The time saved if it alone had been as fast as the next slowest.
        doubt: Why this is not enough evidence; null if it is.
    """
    waits = numbered_barriers(digest).with_columns(wait_sec=(pl.col("end_us") - pl.col("start_us")) / 1e6)
    arrival = pl.col("wait_sec").max() - pl.col("wait_sec")
    table = waits.with_columns(arrival_sec=arrival.over(BARRIER)).sort(*BARRIER, "arrival_sec", "worker")
    before = pl.col("arrival_sec").shift(1, fill_value=0.0).over(BARRIER)
    missing = pl.len().over(BARRIER) - pl.int_range(pl.len()).over(BARRIER)
    share = (pl.col("arrival_sec") - before) / missing
    last = pl.int_range(pl.len()).over(BARRIER) == pl.len().over(BARRIER) - 1
    alone = pl.len().over(BARRIER) == 1
    table = table.with_columns(share=share)  # a column of its own: older polars cannot nest windows
    table = table.with_columns(
        caused_wait_sec=pl.col("share").cum_sum().over(BARRIER),
        possible_saving_sec=pl.when(last & ~alone).then(pl.col("arrival_sec") - before).otherwise(0.0),
    )
    table = table.join(_doubts(digest, waits), on=BARRIER, how="left", maintain_order="left")
    times = ("arrival_sec", "wait_sec", "caused_wait_sec", "possible_saving_sec")
    return table.select(*BARRIER, "worker", *times, "doubt")


def blame_table(digest: Digest) -> pl.DataFrame:
    """Return one row per worker, the one that caused most waiting first, over all barriers without doubt.

    Returns:
        worker, barriers; times_last: how often it arrived last; wait_sec, caused_wait_sec and
        possible_saving_sec: sums.
    """
    certain = barrier_table(digest).filter(pl.col("doubt").is_null())
    latest = pl.col("arrival_sec") == pl.col("arrival_sec").max().over(BARRIER)
    return (
        certain.with_columns(latest=latest)
        .group_by("worker")
        .agg(
            barriers=pl.len().cast(pl.Int64),
            times_last=pl.col("latest").sum().cast(pl.Int64),
            wait_sec=pl.col("wait_sec").sum(),
            caused_wait_sec=pl.col("caused_wait_sec").sum(),
            possible_saving_sec=pl.col("possible_saving_sec").sum(),
        )
        .sort("caused_wait_sec", "worker", descending=[True, False])
    )


def _doubts(digest: Digest, waits: pl.DataFrame) -> pl.DataFrame:
    """Return for each barrier why it is not enough evidence, or null."""
    mine = digest.of_workers()
    requests = mine.requests.group_by("step", "validate", "worker").agg(requests=pl.len())
    offsets = clock_table(digest).select("worker", "offset_sec")
    exits = waits.join(offsets, on="worker", how="left").join(
        requests, on=["step", "validate", "worker"], how="left"
    )
    left_at = pl.col("end_us") - pl.col("offset_sec").fill_null(0.0) * 1e6
    measured = exits.group_by(BARRIER).agg(
        there=pl.col("worker").n_unique(),
        apart_sec=(left_at.max() - left_at.min()) / 1e6,
        longest_sec=pl.col("wait_sec").max(),
        most=pl.col("requests").max(),
        least=pl.col("requests").fill_null(0).min(),
    )
    everyone = mine.steps.group_by("validate").agg(everyone=pl.col("worker").n_unique())
    measured = measured.join(everyone, on="validate", how="left")
    allowed = pl.max_horizontal(_LEFT_TOGETHER_SEC, pl.col("longest_sec") * _OF_THE_WAIT)
    doubt = (
        pl.when(pl.col("there") < 2)
        .then(pl.lit("only one worker"))
        .when(pl.col("there") < pl.col("everyone"))
        .then(pl.lit("some workers are missing"))
        .when(pl.col("apart_sec") > allowed)
        .then(pl.lit("the workers did not leave together"))
        .when(pl.col("most") > _UNEVEN * pl.col("least"))
        .then(pl.lit("the workers had different numbers of requests"))
    )
    return measured.select(*BARRIER, doubt=doubt)


@dataclass(frozen=True)
class Link:
    """What the last worker spent its time on before a barrier: one part of its ledger.

    Attributes:
        part, event: The part, and the event that took most of it.
        sec: Its seconds.
        others_sec: The median of the other workers' seconds of this part before the same barrier.
        request_id: The request in which most of it was spent; null outside of requests.
    """

    part: str
    event: str
    sec: float
    others_sec: float
    request_id: str | None


@dataclass(frozen=True)
class Chain:
    """Why a worker came to a barrier when it did: what it spent its time on before, in the order of time.

    Attributes:
        step, validate, barrier: Which barrier; they count from 0.
        worker: The worker; the one that came last, unless another was asked for.
        late_sec: The time between its arrival and that of the worker before it, if it came last; else 0.
        wait_sec: How long it waited.
        sec: Its time since the step began or the barrier before was left; the links add up to it.
        links: What it spent this time on, in the order of time.
    """

    step: int
    validate: bool
    barrier: int
    worker: int
    late_sec: float
    wait_sec: float
    sec: float
    links: list[Link]


def chain_of(
    digest: Digest | Paths, step: int, validate: bool = False, worker: int | None = None
) -> Chain | None:
    """Walk along the ledger to the barrier of a step with the latest arrival; None without evidence.

    Args:
        digest: Of the run, or its paths.
        step: The step.
        validate: Whether to take the validation at this step.
        worker: Whose ledger; by default that of the worker that came last.
    """
    paths = Paths.of(digest)
    # The clocks are known by the barriers of all steps.
    table = barrier_table(paths.digest).filter(pl.col("doubt").is_null()).filter(step=step, validate=validate)
    if table.is_empty():
        return None
    latest = table.sort("arrival_sec").row(-1, named=True)
    if worker is not None:
        of_worker = table.filter(barrier=latest["barrier"], worker=worker)
        if of_worker.is_empty():
            return None
        latest = of_worker.row(0, named=True)
    pieces = paths.pieces.filter(step=step, validate=validate, segment=latest["barrier"])
    pieces = pieces.filter(pl.col("part") != "barrier")
    mine = pieces.filter(worker=latest["worker"])
    others = (
        pieces.filter(pl.col("worker") != latest["worker"])
        .group_by("part", "worker")
        .agg(pl.col("sec").sum())
    )
    count = table.filter(barrier=latest["barrier"])["worker"].n_unique() - 1
    links = [
        _link(part, others["sec"].filter(others["part"] == part[0, "part"]), count) for part in _parts(mine)
    ]
    place = (step, validate, latest["barrier"], latest["worker"])
    return Chain(*place, latest["possible_saving_sec"], latest["wait_sec"], float(mine["sec"].sum()), links)


def _parts(pieces: pl.DataFrame) -> list[pl.DataFrame]:
    """Return the pieces of each part, in the order in which the middle of each was reached."""
    reached = (pl.col("from_us") * pl.col("sec")).sum() / pl.col("sec").sum()
    order = pieces.with_columns(reached=reached.over("part")).sort("reached", "from_us", maintain_order=True)
    return order.partition_by("part", maintain_order=True)


def _link(pieces: pl.DataFrame, of_others: pl.Series, others: int) -> Link:
    """Sum up the pieces of one part; `of_others` lacks the others that spent nothing on it."""
    spent = sorted([*of_others.to_list(), *[0.0] * (others - len(of_others))])
    longest = {
        name: pieces.group_by(name).agg(pl.col("sec").sum()).sort("sec", name)[name][-1]
        for name in ("event", "request_id")
    }
    usual = statistics.median(spent) if spent else 0.0
    return Link(pieces["part"][0], longest["event"], float(pieces["sec"].sum()), usual, longest["request_id"])
