"""Replay requests at an engine that is slower the more calls it has at once.

Time is counted in tokens that each running call has decoded. A call of 50 tokens ends when the count has
grown by 50, and a heap of these ends gives the next one.
"""

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final

from sglang_instrument.analysis.ledger.engine_speed import EngineSpeed

_NEVER: Final = float("inf")
_ARRIVES, _PREFILLED, _CUT = range(3)


@dataclass
class Call:
    """An engine call.

    Attributes:
        wait_sec: From the end of the call before to its begin.
        prefill_sec: From its admission by the engine to its first token.
        work: By how much the count of tokens grows from there to its end.
    """

    wait_sec: float
    prefill_sec: float
    work: float


@dataclass
class Request:
    """A request: `begin` in seconds, its calls, and `rest_sec` from the end of the last one to its own.

    It is cut `most_sec` after its begin.
    """

    begin: float
    calls: list[Call]
    rest_sec: float
    most_sec: float = _NEVER


def work_of(spans: Sequence[tuple[float, float, float]], speed: EngineSpeed) -> list[float]:
    """Return the work of recorded calls of one engine.

    Args:
        spans: When each was admitted, when it had its first token, and when it ended.
        speed: Of the engine.
    """
    changes = sorted([(start, 1) for start, _, _ in spans] + [(end, -1) for _, _, end in spans])
    wanted = sorted({time for _, first, end in spans for time in (first, end)})
    done: dict[float, float] = {}
    crowd, clock, place = 0, 0.0, 0
    for (now, change), (later, _) in pairwise([*changes, (_NEVER, 0)]):
        crowd += change
        rate = _rate(speed, max(crowd, 1))
        while place < len(wanted) and wanted[place] <= later:
            done[wanted[place]] = clock + (wanted[place] - now) * rate
            place += 1
        clock += (later - now) * rate
    return [done[end] - done[first] for _, first, end in spans]


def _rate(speed: EngineSpeed, crowd: int) -> float:
    sec = speed.token_sec + speed.crowd_sec * crowd
    return 1 / sec if sec else 0.0


def replay(requests: Sequence[Request], speed: EngineSpeed, limit: int | None = None) -> list[float]:
    """Return when each request of an engine ends; it runs at most `limit` calls at once, in their order."""
    return _Replay(requests, speed, limit).run()


class _Replay:
    def __init__(self, requests: Sequence[Request], speed: EngineSpeed, limit: int | None) -> None:
        self._requests, self._speed = requests, speed
        self._limit = _NEVER if limit is None else limit
        self._queue: deque[int] = deque()
        self._ends = [_NEVER] * len(requests)
        self._next = [0] * len(requests)  # the call that each request is in, or waits for
        self._inside = [False] * len(requests)
        self._events: list[tuple[float, int, int]] = []
        self._decoding: list[tuple[float, int]] = []
        self._crowd, self._clock, self._now = 0, 0.0, 0.0

    def run(self) -> list[float]:
        for number, request in enumerate(self._requests):
            if request.most_sec < _NEVER:
                heapq.heappush(self._events, (request.begin + request.most_sec, _CUT, number))
            self._go_on(number, request.begin)
        while self._events or self._decoding:
            rate = _rate(self._speed, self._crowd)
            done = self._next_done(rate)
            if self._events and self._events[0][0] < done:
                time, kind, number = heapq.heappop(self._events)
                self._clock += (time - self._now) * rate
                self._now = time
                if self._ends[number] == _NEVER:
                    self._happen(kind, number)
            elif self._decoding:
                self._clock, number = heapq.heappop(self._decoding)
                self._now = done
                self._leave(number)
                self._next[number] += 1
                self._go_on(number, done)
        return self._ends

    def _next_done(self, rate: float) -> float:
        """Return when the next call is done; forget those of requests that were cut."""
        while self._decoding and self._ends[self._decoding[0][1]] < _NEVER:
            heapq.heappop(self._decoding)
        if not self._decoding:
            return _NEVER
        left = max(0.0, self._decoding[0][0] - self._clock)
        return self._now + (left / rate if rate else 0.0)

    def _go_on(self, number: int, now: float) -> None:
        request, next_call = self._requests[number], self._next[number]
        if next_call < len(request.calls):
            heapq.heappush(self._events, (now + request.calls[next_call].wait_sec, _ARRIVES, number))
        else:
            self._ends[number] = min(now + request.rest_sec, request.begin + request.most_sec)

    def _happen(self, kind: int, number: int) -> None:
        if kind == _CUT:
            self._ends[number] = self._now
            self._leave(number)
        elif kind == _ARRIVES:
            self._queue.append(number)
            self._admit()
        else:
            work = self._requests[number].calls[self._next[number]].work
            heapq.heappush(self._decoding, (self._clock + work, number))

    def _admit(self) -> None:
        """Admit calls while there is room; those of requests that were cut are gone."""
        while self._queue and self._crowd < self._limit:
            number = self._queue.popleft()
            if self._ends[number] == _NEVER:
                self._inside[number] = True
                self._crowd += 1
                prefill_sec = self._requests[number].calls[self._next[number]].prefill_sec
                heapq.heappush(self._events, (self._now + prefill_sec, _PREFILLED, number))

    def _leave(self, number: int) -> None:
        self._crowd -= self._inside[number]
        self._inside[number] = False
        self._admit()
