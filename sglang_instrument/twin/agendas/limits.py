"""Find how many requests a client has open at most: then a request begins as another ends."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import median
from typing import Final

_SOON_US: Final = 5_000
_SOON: Final = 0.05  # of a usual request: a busy client begins the next one later
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
    soon_us = max(_SOON_US, _SOON * median(end - start for start, end in requests))
    # With a limit, the first of them begins after the first end, the second after the second end.
    followed = sum(0 <= start - end < soon_us for start, end in zip(late, ends, strict=False))
    return most if followed >= _SHARE * len(late) else None
