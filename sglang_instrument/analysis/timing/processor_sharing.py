"""Serve calls at engines that decode slower the more calls they run: the one engine behind every replay.

Time is counted in tokens that each running call of an engine has decoded. A call of 50 tokens ends when the
count has grown by 50, and a heap of these ends gives the next one in O(log n).

Calls go to the engine that has the fewest, waiting ones included. Of engines with equally many, the one that
was given a call longest ago takes the next: calls that all take equally long go to the engines in turn.
"""

import heapq
from collections import deque
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

NEVER: Final = float("inf")
_ARRIVES, _PREFILLED, _CUT, _STALLS = range(4)  # in this order, if they happen at the same time


class SharedCall(NamedTuple):
    """A call of an engine, made `at_sec`.

    `prefill_sec` passes from its admission to its first token. From there to its end, the count of tokens
    grows by `work`.
    """

    at_sec: float
    prefill_sec: float
    work: float


class Served(NamedTuple):
    """When a call left the queue, had its first token, and returned, in seconds."""

    admitted: float
    first: float
    end: float


#: What makes calls one after the other: it yields each, and is sent when the call was served.
Caller = Generator[SharedCall, Served, None]


@dataclass(frozen=True)
class SharingRules:
    """How engines serve calls; all engines are equal.

    Attributes:
        token_sec: Seconds a token of a call that runs alone, without `crowd_sec`.
        crowd_sec: Seconds a token more for each running call, itself included.
        limit: How many calls an engine runs at once; the others queue as they come. None for any number.
        engines: How many engines there are.
        stalls: From when to when the engines stand still, in order, apart.
    """

    token_sec: float
    crowd_sec: float = 0.0
    limit: int | None = None
    engines: int = 1
    stalls: Sequence[tuple[float, float]] = ()


def serve(callers: Iterable[Caller], rules: SharingRules, cuts: Sequence[float] = ()) -> None:
    """Run callers to their ends.

    Args:
        callers: What makes the calls.
        rules: How the engines serve them.
        cuts: When each caller is cut, if it has not ended: its call leaves the engine, and the
            caller is closed. Without them, none is cut.
    """
    _Service(list(callers), rules).run(cuts)


@dataclass
class _Running:
    """A call that an engine has, or that waits for one."""

    call: SharedCall
    engine: "_SharingEngine"
    admitted: float = NEVER
    first: float = NEVER


@dataclass
class _SharingEngine:
    """An engine: calls that wait, how many it runs, and the ends of those that decode, in tokens."""

    last: int  # the call that it was given last
    queue: deque[int] = field(default_factory=deque)
    decoding: list[tuple[float, int]] = field(default_factory=list)
    crowd: int = 0
    tokens: float = 0.0  # that a running call would have decoded until `now`
    now: float = 0.0


class _Service:
    def __init__(self, callers: list[Caller], rules: SharingRules) -> None:
        self._callers, self._rules = callers, rules
        self._limit = NEVER if rules.limit is None else rules.limit
        self._engines = [_SharingEngine(number - rules.engines) for number in range(rules.engines)]
        self._running: dict[int, _Running] = {}  # by the number of the caller
        self._ended = [False] * len(callers)
        self._calls: list[SharedCall | None] = [None] * len(callers)  # the one that each caller makes next
        self._events: list[tuple[float, int, int]] = []
        self._given, self._stalled = 0, False

    def run(self, cuts: Sequence[float]) -> None:
        for number, cut in enumerate(cuts):
            if cut < NEVER:
                heapq.heappush(self._events, (cut, _CUT, number))
        for number, caller in enumerate(self._callers):
            self._ask(number, next(caller, None))
        for stall in self._rules.stalls:
            for time_sec in stall:
                heapq.heappush(self._events, (time_sec, _STALLS, -1))
        while True:
            done, engine = min(
                ((self._next_done(engine), engine) for engine in self._engines), key=lambda pair: pair[0]
            )
            if self._events and self._events[0][0] < done:
                self._happen(*heapq.heappop(self._events))
            elif done < NEVER:
                self._end(engine, done)
            else:
                return

    def _ask(self, number: int, call: SharedCall | None) -> None:
        """Take the next call of a caller; None if it has ended."""
        self._calls[number] = call
        if call is None:
            self._ended[number] = True
        else:
            heapq.heappush(self._events, (call.at_sec, _ARRIVES, number))

    def _token_sec(self, engine: _SharingEngine) -> float:
        return self._rules.token_sec + self._rules.crowd_sec * engine.crowd

    def _next_done(self, engine: _SharingEngine) -> float:
        """Return when the next call of an engine is done; forget those of callers that were cut."""
        while engine.decoding and self._ended[engine.decoding[0][1]]:
            heapq.heappop(engine.decoding)
        if not engine.decoding or self._stalled:
            return NEVER
        return engine.now + max(0.0, engine.decoding[0][0] - engine.tokens) * self._token_sec(engine)

    def _pass_time(self, engine: _SharingEngine, now: float) -> None:
        """Let an engine decode until now, before its crowd changes."""
        token_sec = self._token_sec(engine)
        if engine.decoding and token_sec and not self._stalled:
            engine.tokens += (now - engine.now) / token_sec
        engine.now = now

    def _happen(self, now: float, kind: int, number: int) -> None:
        if kind == _STALLS:
            for engine in self._engines:
                self._pass_time(engine, now)
            self._stalled = not self._stalled
        elif self._ended[number]:
            return
        elif kind == _CUT:
            self._cut(number, now)
        elif kind == _ARRIVES:
            self._arrive(number, now)
        else:
            running = self._running[number]
            self._pass_time(running.engine, now)
            running.first = now
            heapq.heappush(running.engine.decoding, (running.engine.tokens + running.call.work, number))

    def _arrive(self, number: int, now: float) -> None:
        call = self._calls[number]
        if call is None:
            return
        engine = min(self._engines, key=lambda known: (known.crowd + len(known.queue), known.last))
        self._given += 1
        engine.last, self._running[number] = self._given, _Running(call, engine)
        engine.queue.append(number)
        self._admit(engine, now)

    def _admit(self, engine: _SharingEngine, now: float) -> None:
        """Admit calls while there is room."""
        while engine.queue and engine.crowd < self._limit:
            number = engine.queue.popleft()
            self._pass_time(engine, now)
            engine.crowd += 1
            running = self._running[number]
            running.admitted = now
            heapq.heappush(self._events, (self._after(now, running.call.prefill_sec), _PREFILLED, number))

    def _after(self, now: float, work_sec: float) -> float:
        """Return when so much work that begins now is done; the engine may stand still meanwhile."""
        ends = now + work_sec
        for start, end in self._rules.stalls:
            if start < ends and end > now:
                ends += end - max(start, now)
        return ends

    def _end(self, engine: _SharingEngine, done: float) -> None:
        tokens, number = heapq.heappop(engine.decoding)
        engine.tokens, engine.now = tokens, done
        engine.crowd -= 1
        running = self._running.pop(number)
        try:
            self._ask(number, self._callers[number].send(Served(running.admitted, running.first, done)))
        except StopIteration:
            self._ask(number, None)
        self._admit(engine, done)

    def _cut(self, number: int, now: float) -> None:
        self._ended[number] = True
        self._callers[number].close()
        running = self._running.pop(number, None)
        if running is None:  # it had no call
            return
        if running.admitted < NEVER:
            self._pass_time(running.engine, now)
            running.engine.crowd -= 1
            self._admit(running.engine, now)
        else:
            running.engine.queue.remove(number)
