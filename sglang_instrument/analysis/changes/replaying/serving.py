"""Read from the log how many servers served a run, and how many requests each ran at once."""

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from sglang_instrument.analysis.answers.routing.server_calls import server_calls

if TYPE_CHECKING:
    from sglang_instrument.analysis.run.opening import Run

_FEWEST: Final = 20  # calls whose time in the queue is known
_LEAST_QUEUE: Final = 0.05  # of the time of calls: less is no queue that a limit makes
_PARTS: Final = ("queue_sec", "prefill_sec", "decode_sec")


class Serving(NamedTuple):
    """How a run was served.

    Attributes:
        servers: How many servers; None if the log names none.
        running: How many requests one of them ran while others waited; None if not known, or none did.
    """

    servers: int | None = None
    running: int | None = None


def serving_of(run: "Run") -> Serving:
    """Return how the training steps of a run were served, by the engines' own logs and by their callers."""
    calls = server_calls(run).filter(~pl.col("validate") & pl.col("step").is_not_null())
    named = calls.drop_nulls("server")
    if named.is_empty():
        return Serving()
    queued = named.drop_nulls([*_PARTS, "start_us", "call_sec"])
    running = None
    waited, took = (float(queued[name].sum()) for name in ("queue_sec", "call_sec"))
    if len(queued) >= _FEWEST and waited > _LEAST_QUEUE * took:
        running = _usual_level(queued)
    return Serving(named["server"].n_unique(), running)


def _usual_level(calls: pl.DataFrame) -> int | None:
    """Return the number of requests that a server ran for the longest time while others waited."""
    arrived = pl.col("start_us") / 1e6
    admitted = arrived + pl.col("queue_sec")
    ended = admitted + pl.col("prefill_sec") + pl.col("decode_sec")
    servers = [
        list(of_server.select(a=arrived, b=admitted, c=ended).iter_rows())
        for _, of_server in calls.group_by("server")
    ]
    return most_usual_level(servers)[0]


def most_usual_level(servers: Iterable[Iterable[tuple[float, float, float]]]) -> tuple[int | None, float]:
    """Return the number of calls that servers ran for the longest time while others waited, and that time.

    Args:
        servers: When each call of a server arrived, was admitted and ended, in seconds.
    """
    seconds: dict[int, float] = {}
    for calls in servers:
        for level, sec in _levels(calls):
            seconds[level] = seconds.get(level, 0.0) + sec
    return (max(seconds, key=lambda level: seconds[level]) if seconds else None), sum(seconds.values())


def _levels(calls: Iterable[tuple[float, float, float]]) -> Iterator[tuple[int, float]]:
    """Yield for how long a server ran so many requests while at least one waited."""
    changes: list[tuple[float, int, int]] = []  # when; by how much more run, and wait
    for come, begun, gone in calls:
        changes += [(come, 0, 1), (begun, 1, -1), (gone, -1, 0)]
    changes.sort()
    running = waiting = 0
    last = 0.0
    for now, run, wait in changes:
        if waiting > 0 and running > 0:
            yield running, now - last
        running, waiting, last = running + run, waiting + wait, now
