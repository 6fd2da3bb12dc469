"""Find how many requests a client has open at most: then a request begins as another ends."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Final, NamedTuple

_SOON_US: Final = 5_000
#: Of a usual request: a busy client begins the next one so late. Alone, one step has less evidence than all.
_SOON_ALONE: Final = 0.05
_SOON_TOGETHER: Final = 0.2
_SHARE_ALONE: Final = 0.8  # of the late requests begin as another one ends
_SHARE_TOGETHER: Final = 0.5
_FEWEST_TOGETHER: Final = 2

#: Begin and end of each request of a worker and step, in microseconds.
Requests = Sequence[tuple[int, int]]
_Place = tuple[int, int]


class _Late(NamedTuple):
    """What a worker's step tells of a limit.

    Attributes:
        most: How many requests are open at most.
        delays: By request that begins after so many others, the part of a usual request by which it begins
            after an end: the first after the first end, the second after the second.
        usual_us: A usual request.
    """

    most: int
    delays: list[float]
    usual_us: float

    def share(self, soon: float) -> float:
        """Return the share of late requests that begin as another one ends."""
        soon = max(soon, _SOON_US / self.usual_us)
        return sum(0 <= delay < soon for delay in self.delays) / len(self.delays)


def client_limits(requests: Mapping[_Place, Requests]) -> dict[_Place, int | None]:
    """Return by step and worker how many requests are open at most, where a limit of the client decides it.

    That all of them have as many open at most is evidence, too: of requests that come at their own times, the
    most differs.
    """
    late_by_place = {
        place: late for place, of_worker in requests.items() if (late := _late(of_worker)) is not None
    }
    most = {late.most for late in late_by_place.values()}
    shares = [late.share(_SOON_TOGETHER) for late in late_by_place.values()]
    if (
        len(late_by_place) >= _FEWEST_TOGETHER
        and len(most) == 1
        and sum(shares) >= _SHARE_TOGETHER * len(shares)
    ):
        return {place: late_by_place[place].most if place in late_by_place else None for place in requests}
    return {place: client_limit(of_worker) for place, of_worker in requests.items()}


def client_limit(requests: Requests) -> int | None:
    """Return the same of one step of a worker."""
    late = _late(requests)
    return late.most if late is not None and late.share(_SOON_ALONE) >= _SHARE_ALONE else None


def _late(requests: Requests) -> _Late | None:
    """Return what a worker's step tells; None if all of its requests were open at once."""
    changes = sorted([(start, 1) for start, _ in requests] + [(end, -1) for _, end in requests])
    most = now = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    late, ends = sorted(start for start, _ in requests)[most:], sorted(end for _, end in requests)
    usual_us = max(1.0, median(end - start for start, end in requests)) if requests else 1.0
    delays = [(start - end) / usual_us for start, end in zip(late, ends, strict=False)]
    return _Late(most, delays, usual_us) if delays else None
