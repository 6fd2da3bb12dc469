"""Find how many groups a worker needed, where it starts more and aborts what is left once it has enough."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

#: An abort may end its request so long before the last group ends.
_SOON_US: Final = 500_000


def enough_by_worker(
    chains: Sequence[Sequence[dict[str, Any]]], groups: Sequence[str]
) -> dict[int, tuple[int, list[int]]]:
    """Return by worker how many groups it needed, and which of its requests it aborted then.

    Args:
        chains: By request its calls, in order.
        groups: The group of each request.

    Returns:
        The worker's complete groups, and the places of its aborted requests. A worker is absent whose aborts
        came while it still waited for others: a client gave these requests up one by one.
    """
    by_worker: dict[int, list[int]] = {}
    for place, chain in enumerate(chains):
        by_worker.setdefault(chain[0]["worker"], []).append(place)
    answer = {}
    for worker, places in sorted(by_worker.items()):
        aborted = [place for place in places if chains[place][-1]["is_aborted"]]
        cut = {groups[place] for place in aborted}
        complete = [place for place in places if groups[place] not in cut]
        if not aborted or not complete:
            continue
        had_enough_us = max(chains[place][-1]["end_us"] for place in complete)
        if min(chains[place][-1]["end_us"] for place in aborted) >= had_enough_us - _SOON_US:
            answer[worker] = len({groups[place] for place in complete}), aborted
    return answer
