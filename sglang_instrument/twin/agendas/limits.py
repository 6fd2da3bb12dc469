"""Find how many requests a client has open at most: then a request begins as another ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

_SOON_US: Final = 5_000
_SHARE: Final = 0.9  # of the late requests begin as another one ends


def client_limit(requests: Sequence[tuple[int, int]]) -> int | None:
    """Return how many requests are open at most, if a limit of the client decides it; else None.

    Args:
        requests: Begin and end of each request of a worker and step, in microseconds.
    """
    changes = sorted([(start, 1) for start, _ in requests] + [(end, -1) for _, end in requests])
    most = now = 0
    for _, change in changes:
        now += change
        most = max(most, now)
    late, ends = sorted(start for start, _ in requests)[most:], sorted(end for _, end in requests)
    if not late:
        return None
    followed, place = 0, 0
    for start in late:
        while place + 1 < len(ends) and ends[place + 1] <= start:
            place += 1
        followed += 0 <= start - ends[place] < _SOON_US
    return most if followed >= _SHARE * len(late) else None
