"""Serve the calls of requests as an engine does: it queues, prefills, and decodes slower with more to do.

All running calls decode at one rate, so time is counted in tokens that each running call has decoded: a call
of 50 tokens ends when the count has grown by 50. A heap gives the next end in O(log n).
"""

import heapq
from collections import deque
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Final, NamedTuple

_NEVER: Final = float("inf")


@dataclass(frozen=True)
class Engine:
    """How fast an engine is; the default one is as fast with many requests as with one.

    Attributes:
        token_sec: Seconds a token of a request that runs alone.
        load_sec: Seconds a token more for each running request, itself included.
        prefill_sec: Seconds of prefill a token of the prompt.
        call_sec: Seconds of prefill a call more, however long its prompt is.
        most_running: Most requests that run at once; the others queue in the order of their arrival.
        shared: Whether all workers call one engine; otherwise each has its own.
    """

    token_sec: float = 0.02
    load_sec: float = 0.0
    prefill_sec: float = 0.0
    most_running: int | None = None
    shared: bool = False
    call_sec: float = 0.0

    def times(self, factor: float) -> "Engine":
        """Return an engine that takes `factor` times as long for everything but the queue."""
        return replace(
            self,
            token_sec=self.token_sec * factor,
            load_sec=self.load_sec * factor,
            prefill_sec=self.prefill_sec * factor,
            call_sec=self.call_sec * factor,
        )


@dataclass
class EngineState:
    """What is out of the ordinary with an engine in one step.

    Attributes:
        factor: It takes this many times as long.
        stalls: From when to when it stands still, in seconds after the start of generation; they may overlap.
    """

    factor: float = 1.0
    stalls: list[tuple[float, float]] = field(default_factory=list)


class Call(NamedTuple):
    """A call of an engine, made `at` a time.

    `work` is in tokens, and counts those of a slow call more than once; for `extra_sec` the call stays in the
    engine before its first token.
    """

    at: float
    prompt_tokens: int
    work: float
    extra_sec: float = 0.0


class Served(NamedTuple):
    """When a call left the queue, had its prefill done, and returned."""

    admitted: float
    first: float
    end: float


#: A request: it yields its calls, and is sent when each was served.
Caller = Generator[Call, Served, None]


def serve(engine: Engine, state: EngineState, begin: float, callers: Iterable[Caller]) -> None:
    """Run the callers to their ends at one engine; the state's times count from `begin`."""
    _Service(engine.times(state.factor), [(begin + start, begin + end) for start, end in state.stalls]).run(
        callers
    )


class _Service:
    def __init__(self, engine: Engine, stalls: list[tuple[float, float]]) -> None:
        self._engine, self._stalls = engine, merged(stalls)
        self._now = self._tokens = 0.0  # seconds, and tokens that a request would have decoded until now
        self._number = count()  # orders what happens at the same time
        self._events: list[tuple[float, int, Caller | None, Call, float | None]] = []
        self._decoding: list[tuple[float, int, Caller, float, float]] = []
        self._queue: deque[tuple[Caller, Call]] = deque()
        self._running, self._stalled = 0, False

    def run(self, callers: Iterable[Caller]) -> None:
        for caller in callers:
            if (call := next(caller, None)) is not None:
                self._arrives(caller, call)
        for times in self._stalls:
            for time_sec in times:
                heapq.heappush(self._events, (time_sec, next(self._number), None, Call(0.0, 0, 0.0), None))
        while self._events or self._decoding:
            next_sec = self._events[0][0] if self._events else _NEVER
            done_sec = self._next_done()
            if done_sec <= next_sec:
                self._end_call(done_sec)
            else:
                self._pass_time(next_sec)
                self._happen(*heapq.heappop(self._events)[2:])

    def _token_sec(self) -> float:
        return self._engine.token_sec + self._engine.load_sec * self._running

    def _next_done(self) -> float:
        if not self._decoding or self._stalled:
            return _NEVER
        return self._now + max(0.0, self._decoding[0][0] - self._tokens) * self._token_sec()

    def _pass_time(self, until: float) -> None:
        if self._decoding and not self._stalled:
            self._tokens += (until - self._now) / self._token_sec()
        self._now = until

    def _happen(self, caller: Caller | None, call: Call, admitted: float | None) -> None:
        if caller is None:
            self._stalled = not self._stalled
        elif admitted is not None:
            number = next(self._number)
            done = self._tokens + call.work
            heapq.heappush(self._decoding, (done, number, caller, admitted, self._now))
        else:
            self._queue.append((caller, call))
            self._admit()

    def _arrives(self, caller: Caller, call: Call) -> None:
        heapq.heappush(self._events, (call.at, next(self._number), caller, call, None))

    def _admit(self) -> None:
        """Admit calls while there is room; their prefill ends later."""
        most = self._engine.most_running
        while self._queue and (most is None or self._running < most):
            caller, call = self._queue.popleft()
            self._running += 1
            prefill_sec = self._engine.call_sec + call.prompt_tokens * self._engine.prefill_sec
            ends = self._after(prefill_sec + call.extra_sec)
            heapq.heappush(self._events, (ends, next(self._number), caller, call, self._now))

    def _after(self, work_sec: float) -> float:
        """Return when so much work that begins now is done; the engine may stand still meanwhile."""
        ends = self._now + work_sec
        for start, end in self._stalls:
            if start < ends and end > self._now:
                ends += end - max(start, self._now)
        return ends

    def _end_call(self, done_sec: float) -> None:
        self._tokens, _, caller, admitted, first = heapq.heappop(self._decoding)
        self._now = done_sec
        self._running -= 1
        try:
            self._arrives(caller, caller.send(Served(admitted, first, done_sec)))
        except StopIteration:
            pass
        self._admit()


def merged(spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return spans in order, those that overlap as one."""
    apart: list[tuple[float, float]] = []
    for start, end in sorted(spans):
        if apart and start <= apart[-1][1]:
            apart[-1] = apart[-1][0], max(end, apart[-1][1])
        elif start < end:
            apart.append((start, end))
    return apart
