"""Show who waited for whom at barriers, and how much of the waiting each worker caused."""

from dataclasses import dataclass
from typing import Any, Final

import polars as pl

from sglang_instrument.analysis.answers.clocks import BARRIER, clock_table, numbered_barriers
from sglang_instrument.analysis.run.digest import Digest
from sglang_instrument.analysis.run.opening import Run

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
        blame_sec: Its share of the time between the first and the last arrival: the waiting at each time is
            split equally over the workers still missing (the Shapley value of the airport game).
        gain_alone_sec: The time saved if it alone had been as fast as the next slowest.
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
        blame_sec=pl.col("share").cum_sum().over(BARRIER),
        gain_alone_sec=pl.when(last & ~alone).then(pl.col("arrival_sec") - before).otherwise(0.0),
    )
    table = table.join(_doubts(digest, waits), on=BARRIER, how="left", maintain_order="left")
    return table.select(*BARRIER, "worker", "arrival_sec", "wait_sec", "blame_sec", "gain_alone_sec", "doubt")


def blame_table(digest: Digest) -> pl.DataFrame:
    """Return one row per worker, the most to blame first, over all barriers without doubt.

    Returns:
        worker, barriers; last: how often it arrived last; wait_sec, blame_sec, gain_alone_sec: sums.
    """
    certain = barrier_table(digest).filter(pl.col("doubt").is_null())
    latest = pl.col("arrival_sec") == pl.col("arrival_sec").max().over(BARRIER)
    return (
        certain.with_columns(latest=latest)
        .group_by("worker")
        .agg(
            barriers=pl.len().cast(pl.Int64),
            last=pl.col("latest").sum().cast(pl.Int64),
            wait_sec=pl.col("wait_sec").sum(),
            blame_sec=pl.col("blame_sec").sum(),
            gain_alone_sec=pl.col("gain_alone_sec").sum(),
        )
        .sort("blame_sec", "worker", descending=[True, False])
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
class Chain:
    """Why a barrier took so long: the last worker, its last request, the longest turn, the longest event."""

    step: int
    worker: int
    late_sec: float
    request_id: str | None
    request_sec: float | None
    turn: int | None
    turn_sec: float | None
    event: str | None
    event_sec: float | None


def chain_of(run: Run, step: int, validate: bool = False) -> Chain | None:
    """Follow the barrier of a step with the latest arrival down to an event; None without evidence.

    `late_sec` is the time between the arrivals of this worker and the one before.
    """
    of_step = run.digest.filter((pl.col("step") == step) & (pl.col("validate") == validate))
    table = barrier_table(of_step).filter(pl.col("doubt").is_null())
    if table.is_empty():
        return None
    latest = table.sort("arrival_sec").row(-1, named=True)
    late = latest["gain_alone_sec"]
    requests = of_step.requests.filter(worker=latest["worker"]).sort("end_us")
    if requests.is_empty():
        return Chain(step, latest["worker"], late, None, None, None, None, None, None)
    request = requests.row(-1, named=True)
    turn = _longest_turn(of_step, request)
    event = _longest_event(run.read_spans(step, latest["worker"], validate), request, turn)
    return Chain(
        *(step, latest["worker"], late, request["request_id"], request["duration_sec"]),
        *(None if turn is None else turn["turn"], None if turn is None else turn["turn_sec"]),
        *event,
    )


def _longest_turn(digest: Digest, request: dict[str, Any]) -> dict[str, Any] | None:
    turns = digest.turns.filter(worker=request["worker"], request_id=request["request_id"])
    timed = turns.with_columns(turn_sec=(pl.col("end_us") - pl.col("start_us")) / 1e6).sort(
        "turn_sec", "turn"
    )
    return None if timed.is_empty() else timed.row(-1, named=True)


def _longest_event(
    spans: pl.DataFrame, request: dict[str, Any], turn: dict[str, Any] | None
) -> tuple[str | None, float | None]:
    """Return the longest span of work within the turn, or the request; the outermost one of equals."""
    inside = spans.filter(
        (pl.col("request_id") == request["request_id"])
        & ~pl.col("phase").cast(pl.String).is_in(["step", "request", "turn", "loop"])
    )
    if turn is not None:
        inside = inside.filter(
            (pl.col("start_us") >= turn["start_us"]) & (pl.col("end_us") <= turn["end_us"])
        )
    if inside.is_empty():
        return None, None
    longest = inside.sort("duration_sec", pl.col("span"), descending=[True, False]).row(0, named=True)
    return str(longest["event"]), longest["duration_sec"]
