"""Replay requests at several equal engines: each call goes to the one that has the fewest calls.

With one engine it is what `replay` does. Of engines with equally many calls, the one that was given a call
longest ago takes the next: calls that all take equally long go to the engines in turn.
"""

import heapq
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from sglang_instrument.analysis.changes.replay import Request
from sglang_instrument.analysis.ledger.engine_speed import EngineSpeed

_NEVER: Final = float("inf")
_ARRIVES, _PREFILLED = range(2)


@dataclass
class _Engine:
    """An engine: calls that wait, how many are inside, and the ends of those that decode, in tokens."""

    last: int = 0  # the call that it was given last
    queue: deque[int] = field(default_factory=deque)
    decoding: list[tuple[float, int]] = field(default_factory=list)
    crowd: int = 0
    clock: float = 0.0  # tokens that a running call would have decoded until `now`
    now: float = 0.0


def replay_at(
    requests: Sequence[Request], speed: EngineSpeed, limit: int | None, engines: int
) -> list[float]:
    """Return when each request ends.

    Args:
        requests: Without a cut.
        speed: Of each engine.
        limit: How many calls an engine runs at once; None for any number.
        engines: Their number.
    """
    return _Fleet(requests, speed, limit, engines).run()


class _Fleet:
    def __init__(
        self, requests: Sequence[Request], speed: EngineSpeed, limit: int | None, engines: int
    ) -> None:
        self._requests, self._speed = requests, speed
        self._limit = _NEVER if limit is None else limit
        self._engines = [_Engine(number - engines) for number in range(engines)]
        self._at: list[_Engine | None] = [None] * len(requests)  # the engine that has the call of a request
        self._ends = [_NEVER] * len(requests)
        self._next = [0] * len(requests)
        self._events: list[tuple[float, int, int]] = []
        self._given = 0

    def run(self) -> list[float]:
        for number, request in enumerate(self._requests):
            self._go_on(number, request.begin)
        while True:
            done, engine = min(
                ((self._next_done(one), one) for one in self._engines), key=lambda found: found[0]
            )
            if self._events and self._events[0][0] < done:
                now, kind, number = heapq.heappop(self._events)
                self._happen(now, kind, number)
            elif done < _NEVER:
                self._end(engine, done)
            else:
                return self._ends

    def _rate(self, engine: _Engine) -> float:
        sec = self._speed.token_sec + self._speed.crowd_sec * engine.crowd
        return 1 / sec if sec else 0.0

    def _next_done(self, engine: _Engine) -> float:
        if not engine.decoding:
            return _NEVER
        rate = self._rate(engine)
        left = max(0.0, engine.decoding[0][0] - engine.clock)
        return engine.now + (left / rate if rate else 0.0)

    def _pass_time(self, engine: _Engine, now: float) -> None:
        """Let an engine decode until now, before its crowd changes."""
        engine.clock += (now - engine.now) * self._rate(engine)
        engine.now = now

    def _go_on(self, number: int, now: float) -> None:
        request, next_call = self._requests[number], self._next[number]
        if next_call < len(request.calls):
            heapq.heappush(self._events, (now + request.calls[next_call].wait_sec, _ARRIVES, number))
        else:
            self._ends[number] = now + request.rest_sec

    def _happen(self, now: float, kind: int, number: int) -> None:
        if kind == _ARRIVES:
            engine = min(self._engines, key=lambda one: (one.crowd + len(one.queue), one.last))
            self._given += 1
            engine.last, self._at[number] = self._given, engine
            engine.queue.append(number)
            self._admit(engine, now)
        elif (engine_of := self._at[number]) is not None:
            self._pass_time(engine_of, now)
            work = self._requests[number].calls[self._next[number]].work
            heapq.heappush(engine_of.decoding, (engine_of.clock + work, number))

    def _admit(self, engine: _Engine, now: float) -> None:
        """Admit calls while there is room."""
        while engine.queue and engine.crowd < self._limit:
            number = engine.queue.popleft()
            self._pass_time(engine, now)
            engine.crowd += 1
            prefill_sec = self._requests[number].calls[self._next[number]].prefill_sec
            heapq.heappush(self._events, (now + prefill_sec, _PREFILLED, number))

    def _end(self, engine: _Engine, done: float) -> None:
        until, number = heapq.heappop(engine.decoding)
        self._pass_time(engine, done)
        engine.clock = until
        engine.crowd -= 1
        self._next[number] += 1
        self._go_on(number, done)
        self._admit(engine, done)
