"""Put the tools and rewards of recorded requests into the pools in which they waited for a place."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import polars as pl

from sglang_instrument.analysis.changes.replaying.pools import PooledCall, PooledCalls
from sglang_instrument.analysis.changes.replaying.replay import PooledWork
from sglang_instrument.analysis.changes.replaying.rules import Recorded

_ROUNDED_SEC: Final = 1e-3  # a call may begin so much before the engine call that it follows has ended


class PoolUse:
    """The calls of recorded requests in pools.

    Args:
        pooled: The calls, and the pools.
        rows: Of `request_rows`.
    """

    def __init__(self, pooled: PooledCalls | None, rows: pl.DataFrame) -> None:
        self._pooled = pooled if pooled is not None and pooled.pools else None
        if self._pooled is None:
            return
        self._numbers = {pool.name: number for number, pool in enumerate(self._pooled.pools)}
        self._rows = rows.select("step", "validate", "request_id", "start_us", "begin").rows()

    def placed(self, number: int, recorded: Recorded, ends: Sequence[float]) -> Recorded:
        """Return a request whose waits for a place are the pools' to make.

        Args:
            number: Of its row.
            recorded: As it was recorded.
            ends: When its engine calls ended, in seconds since its worker's step began.
        """
        if self._pooled is None or not ends:
            return recorded
        step, validate, request_id, start_us, begin = self._rows[number]
        shift = start_us / 1e6 - begin
        after: dict[tuple[int, str], list[tuple[PooledCall, float]]] = {}
        for call, admitted in [] if validate else self._pooled.of_request(step, request_id):
            if call.name in self._numbers:
                place = bisect_right(ends, call.begin - shift + _ROUNDED_SEC) - 1
                after.setdefault((place, call.kind), []).append((call, admitted))
        for (place, kind), calls in sorted(after.items(), key=lambda item: item[0][1] == "reward"):
            if place >= 0:
                recorded = self._with(recorded, place, kind, calls, shift + ends[place])
        return recorded

    def _with(
        self, recorded: Recorded, place: int, kind: str, calls: list[tuple[PooledCall, float]], since: float
    ) -> Recorded:
        """Return a request some calls of which are made in pools, after an engine call.

        Args:
            recorded: The request.
            place: Of the engine call.
            kind: "tool" or "reward".
            calls: The calls in pools, and when each had its place.
            since: The end of the engine call, as the calls have their times.
        """
        begin, end = min(call.begin for call, _ in calls), max(call.end for call, _ in calls)
        works = [
            PooledWork(self._numbers[call.name], kind, max(0.0, call.begin - since), call.end - admitted)
            for call, admitted in calls
        ]
        took, request = end - begin, recorded.request
        answers = {name: list(of_calls) for name, of_calls in recorded.answers.items()}
        reward_sec = recorded.reward_sec
        if kind == "reward":  # it begins after all answers
            replaced = sum(of_calls[place] for of_calls in answers.values())
            for of_calls in answers.values():
                of_calls[place] = 0.0
            reward_sec = max(0.0, reward_sec - took)
        else:
            replaced = min(took, answers["tool"][place])
            answers["tool"][place] -= replaced
        # What passed from the engine call's end to the last of these is theirs, and no wait of what follows.
        last = place + 1 == len(request.calls)
        less = end - since - replaced
        if last:
            rest = max(0.0, request.rest_sec - less)
            request = replace(request, rest_sec=rest, pooled=[*request.pooled, *works])
        else:
            calls_of = list(request.calls)
            following = calls_of[place + 1]
            wait = following.wait_sec - less
            calls_of[place + 1] = replace(following, wait_sec=wait, pooled=[*following.pooled, *works])
            request = replace(request, calls=calls_of)
        return replace(recorded, request=request, answers=answers, reward_sec=reward_sec)
