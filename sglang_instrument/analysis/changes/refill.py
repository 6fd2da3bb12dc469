"""Estimate how long steps would take if new samples began one by one, or only by whole groups."""

import heapq
from collections.abc import Sequence
from typing import Final, Literal

import polars as pl

from sglang_instrument.analysis.answers.steps import STEP, STEP_OF_WORKER, worker_steps
from sglang_instrument.analysis.digests.digest import Digest
from sglang_instrument.errors import InstrumentError

Refill = Literal["sample", "group"]
ASSUMPTIONS: Final = (
    "Each sample takes its recorded time. As many are in flight as the recorded worker had at most; the next "
    "one, or the next group, begins when there is room.",
    "Where all samples of a step begin at once, there is nothing to refill, and nothing changes.",
)


def refill_steps(digest: Digest, how: Refill) -> pl.DataFrame:
    """Return one row per step, as `whatif.what_if` has it; no request ends early.

    Both ways are played through; the one that is nearer to the recorded time counts as the way of the
    recorded run, and the difference to it as what the other one saves.

    Args:
        digest: Of the run.
        how: "sample": a sample begins when another ends; "group": a group when all samples of one have.

    Raises:
        InstrumentError: No request logs its group.
    """
    workers = digest.of_workers()
    requests = workers.requests.sort("start_us")
    if not len(requests) or requests["group"].null_count() == len(requests):
        raise InstrumentError("no request logs its `group`: what refilling would change cannot be estimated")
    rows = []
    for place, of_place in requests.group_by(STEP_OF_WORKER, maintain_order=True):
        rows.append(
            (
                *place,
                len(of_place),
                _saved_sec(of_place, how),
                of_place["reward"].sum(),
                of_place["reward"].count(),
            )
        )
    names = (*STEP_OF_WORKER, "requests", "saved_sec", "rewards", "rewarded")
    saved = pl.DataFrame(rows, schema=list(names), orient="row", infer_schema_length=None)
    steps = (
        worker_steps(workers).select(*STEP_OF_WORKER, "busy_sec").join(saved, on=STEP_OF_WORKER, how="left")
    )
    predicted = pl.col("busy_sec") - pl.col("saved_sec").fill_null(0.0)
    return (
        steps.group_by(STEP)
        .agg(
            recorded_sec=pl.col("busy_sec").max(),
            predicted_sec=predicted.clip(lower_bound=0.0).max(),
            requests=pl.col("requests").sum().cast(pl.Int64),
            ended_early=pl.lit(0, pl.Int64),
            mean_reward=pl.col("rewards").sum() / pl.col("rewarded").sum(),
            ended_early_reward=pl.lit(None, pl.Float64),
        )
        .sort("validate", "step")
    )


def _saved_sec(requests: pl.DataFrame, how: Refill) -> float:
    """Return the seconds that the requests of a worker would be done sooner; later, if negative."""
    begun, ended = requests["start_us"], requests["end_us"]
    first: int = begun.min()  # type: ignore[assignment]
    last: int = ended.max()  # type: ignore[assignment]
    room = most_in_flight(begun.to_list(), ended.to_list())
    groups: dict[object, list[float]] = {}
    for number, (group, sec) in enumerate(requests.select("group", "duration_sec").iter_rows()):
        groups.setdefault(number if group is None else group, []).append(sec)
    waits = list(groups.values())
    took = {"sample": by_sample(waits, room), "group": by_group(waits, room)}
    recorded = min(took.values(), key=lambda sec: abs(sec - (last - first) / 1e6))
    return recorded - took[how]


def most_in_flight(begun: Sequence[int], ended: Sequence[int]) -> int:
    """Return how many requests were in flight at most; one that ends makes room for one that begins."""
    changes = sorted([(time, 1) for time in begun] + [(time, -1) for time in ended])
    now = most = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    return most


def by_sample(groups: Sequence[Sequence[float]], room: int) -> float:
    """Return when all samples are done if each begins as soon as one of `room` places is free."""
    free = [0.0] * max(1, room)
    for sec in (sec for group in groups for sec in group):
        heapq.heappush(free, heapq.heappop(free) + sec)
    return max(free)


def by_group(groups: Sequence[Sequence[float]], room: int) -> float:
    """Return when all samples are done if a group begins only where a whole group has ended."""
    largest = max((len(group) for group in groups), default=1)
    free = [0.0] * max(1, room // largest)
    for group in groups:
        heapq.heappush(free, heapq.heappop(free) + max(group))
    return max(free)
