"""Serve calls at engines that decode slower the more calls they run: the one engine behind every replay.

Time is counted in tokens that each running call of an engine has decoded. A call of 50 tokens ends when the
count has grown by 50, and a heap of these ends gives the next one in O(log n).

Calls go to the engine that has the fewest, waiting ones included. Of engines with equally many, the one that
was given a call longest ago takes the next: calls that all take equally long go to the engines in turn. A
call may also name its engine, or a pool: so many places, in which calls take their time whoever runs beside.
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
    grows by `work`. It goes to the engine that it names, if it names one; or to a pool, in which it takes
    `prefill_sec`. Those `beside` it are made too, and it is served when all of them are.
    """

    at_sec: float
    prefill_sec: float
    work: float
    engine: int | None = None
    pool: int | None = None
    beside: tuple["SharedCall", ...] = ()


class Served(NamedTuple):
    """When a call left the queue, had its first token, and returned, in seconds."""

    admitted: float
    first: float
    end: float


#: What makes calls one after the other: it yields each, and is sent when the call was served.
Caller = Generator[SharedCall, Served, None]


@dataclass(frozen=True)
class SharingRules:
    """How engines serve calls.

    Attributes:
        token_sec: Seconds a token of a call that runs alone, without `crowd_sec`.
        crowd_sec: Seconds a token more for each running call, itself included.
        limit: How many calls an engine runs at once; the others queue as they come. None for any number.
        engines: How many engines there are.
        stalls: From when to when the engines stand still, in order, apart.
        pools: How many calls each pool runs at once.
        prefills_alone: Whether an engine prefills one call after the other, and decodes none meanwhile.
        paces: How many times as long each engine takes; without them, all are equal.
        to_fewest: Whether a call goes to the engine that it names only if no other has fewer calls.
    """

    token_sec: float
    crowd_sec: float = 0.0
    limit: int | None = None
    engines: int = 1
    stalls: Sequence[tuple[float, float]] = ()
    pools: Sequence[int] = ()
    prefills_alone: bool = False
    paces: Sequence[float] = ()
    to_fewest: bool = False


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
    limit: float  # calls that it runs at once
    pace: float = 1.0
    is_pool: bool = False
    prefilling: deque[int] = field(default_factory=deque)  # where prefills are alone, in their order
    queue: deque[int] = field(default_factory=deque)
    decoding: list[tuple[float, int]] = field(default_factory=list)
    crowd: int = 0
    tokens: float = 0.0  # that a running call would have decoded until `now`
    now: float = 0.0

    @property
    def calls(self) -> int:
        """How many it has, those that wait included."""
        return self.crowd + len(self.queue)


class _Service:
    def __init__(self, callers: list[Caller], rules: SharingRules) -> None:
        self._callers, self._rules = callers, rules
        limit = NEVER if rules.limit is None else rules.limit
        paces = rules.paces or [1.0] * rules.engines
        self._engines = [_SharingEngine(n - rules.engines, limit, pace) for n, pace in enumerate(paces)]
        self._pools = [_SharingEngine(0, places, is_pool=True) for places in rules.pools]
        self._callers_of: dict[int, int] = {}  # of calls beside another: who made them
        self._unserved: dict[int, int] = {}  # by the number of a caller that made several calls
        self._running: dict[int, _Running] = {}  # by the number of the caller
        self._ended = [False] * len(callers)
        self._calls: list[SharedCall | None] = [None] * len(callers)  # the one that each caller makes next
        self._events: list[tuple[float, int, int]] = []
        self._given, self._stalled = 0, False

    def run(self, cuts: Sequence[float]) -> None:
        for number, cut in enumerate(cuts):
            if cut < NEVER:
                heapq.heappush(self._events, (cut, _CUT, number))
        for number, caller in enumerate(list(self._callers)):  # calls beside others make more of them
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
            return
        heapq.heappush(self._events, (call.at_sec, _ARRIVES, number))
        if call.beside:
            self._unserved[number] = 1 + len(call.beside)
        for other in call.beside:
            beside = len(self._callers)
            self._callers.append(_nobody())
            self._ended.append(False)
            self._calls.append(other)
            self._callers_of[beside] = number
            heapq.heappush(self._events, (other.at_sec, _ARRIVES, beside))

    def _token_sec(self, engine: _SharingEngine) -> float:
        return (self._rules.token_sec + self._rules.crowd_sec * engine.crowd) * engine.pace

    def _next_done(self, engine: _SharingEngine) -> float:
        """Return when the next call of an engine is done; forget those of callers that were cut."""
        while engine.decoding and self._ended[engine.decoding[0][1]]:
            heapq.heappop(engine.decoding)
        if not engine.decoding or self._stalled or engine.prefilling:
            return NEVER
        return engine.now + max(0.0, engine.decoding[0][0] - engine.tokens) * self._token_sec(engine)

    def _pass_time(self, engine: _SharingEngine, now: float) -> None:
        """Let an engine decode until now, before its crowd changes."""
        token_sec = self._token_sec(engine)
        if engine.decoding and token_sec and not self._stalled and not engine.prefilling:
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
            if running.engine.is_pool:
                self._serve(number, now)
                return
            self._pass_time(running.engine, now)
            running.first = now
            heapq.heappush(running.engine.decoding, (running.engine.tokens + running.call.work, number))
            if self._rules.prefills_alone:
                self._prefill_next(running.engine, now)

    def _arrive(self, number: int, now: float) -> None:
        call = self._calls[number]
        if call is None:
            return
        engine = self._engine_of(call)
        self._given += 1
        engine.last, self._running[number] = self._given, _Running(call, engine)
        engine.queue.append(number)
        self._admit(engine, now)

    def _engine_of(self, call: SharedCall) -> _SharingEngine:
        if call.pool is not None:
            return self._pools[call.pool]
        named = None if call.engine is None else self._engines[call.engine]
        if named is not None and not self._rules.to_fewest:
            return named
        least = min(self._engines, key=lambda known: (known.calls, known.last))
        return named if named is not None and named.calls == least.calls else least

    def _admit(self, engine: _SharingEngine, now: float) -> None:
        """Admit calls while there is room."""
        while engine.queue and engine.crowd < engine.limit:
            number = engine.queue.popleft()
            self._pass_time(engine, now)
            engine.crowd += 1
            running = self._running[number]
            running.admitted = now
            if self._rules.prefills_alone and not engine.is_pool:
                engine.prefilling.append(number)
                if len(engine.prefilling) == 1:
                    self._prefill(engine, now)
            else:
                ends = self._after(now, running.call.prefill_sec * engine.pace)
                heapq.heappush(self._events, (ends, _PREFILLED, number))

    def _prefill(self, engine: _SharingEngine, now: float) -> None:
        number = engine.prefilling[0]
        ends = self._after(now, self._running[number].call.prefill_sec * engine.pace)
        heapq.heappush(self._events, (ends, _PREFILLED, number))

    def _prefill_next(self, engine: _SharingEngine, now: float) -> None:
        """Prefill the next call, after the one that was prefilled last."""
        engine.prefilling.popleft()
        engine.now = now
        if engine.prefilling:
            self._prefill(engine, now)

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
        self._serve(number, done)

    def _serve(self, number: int, done: float) -> None:
        """Take a call that is done from its engine or pool, and send its caller the news."""
        running = self._running.pop(number)
        running.engine.crowd -= 1
        caller = self._callers_of.get(number, number)
        left = self._unserved.pop(caller, 1) - 1
        if caller != number:
            self._ended[number] = True
        if left:
            self._unserved[caller] = left
        elif not self._ended[caller]:
            try:
                self._ask(caller, self._callers[caller].send(Served(running.admitted, running.first, done)))
            except StopIteration:
                self._ask(caller, None)
        self._admit(running.engine, done)

    def _cut(self, number: int, now: float) -> None:
        self._ended[number] = True
        self._callers[number].close()
        running = self._running.pop(number, None)
        if running is None:  # it had no call
            return
        if running.admitted < NEVER:
            self._pass_time(running.engine, now)
            running.engine.crowd -= 1
            if number in running.engine.prefilling:
                self._stop_prefill(running.engine, number, now)
            self._admit(running.engine, now)
        else:
            running.engine.queue.remove(number)

    def _stop_prefill(self, engine: _SharingEngine, number: int, now: float) -> None:
        if engine.prefilling[0] == number:
            self._prefill_next(engine, now)
        else:
            engine.prefilling.remove(number)


def _nobody() -> Caller:
    """Stand for the caller of a call beside another, which is never asked."""
    yield from ()
