"""Run processes in simulated time: generators that wait for a time, a signal, or either."""

import heapq
from collections import deque
from collections.abc import Callable, Generator
from itertools import count
from typing import Any, Final

#: It yields what it waits for: a time, a signal, or (time, signal). It is sent the signal's value, or None.
Process = Generator[Any, Any, Any]
FOREVER: Final = float("inf")


class Signal:
    """Something that happens once."""

    __slots__ = ("fired", "value", "waiting")

    def __init__(self) -> None:
        self.fired = False
        self.value: Any = None
        self.waiting: list[Callable[[Any], None]] = []

    def fire(self, value: Any = None) -> None:
        """Let it happen; later calls change nothing."""
        if not self.fired:
            self.fired, self.value = True, value
            waiting, self.waiting = self.waiting, []
            for resume in waiting:
                resume(value)


class SimulatedClock:
    """The time of a world, in seconds from its begin, and what happens next."""

    def __init__(self) -> None:
        self.now = 0.0
        self._order = count()
        self._events: list[tuple[float, int, Callable[[Any], None], Any]] = []

    def call_at(self, time_sec: float, call: Callable[[Any], None], value: Any = None) -> None:
        """Call a function at a time."""
        heapq.heappush(self._events, (max(time_sec, self.now), next(self._order), call, value))

    def start(self, process: Process) -> Signal:
        """Start a process now; return the signal of its end."""
        running = RunningProcess(self, process)
        self.call_at(self.now, running.resume_at(0))
        return running.done

    def run(self, until: Signal) -> None:
        """Let time pass until a signal, or until nothing happens any more."""
        events = self._events
        while events and not until.fired:
            self.now, _, call, value = heapq.heappop(events)
            call(value)
        if not until.fired:
            raise RuntimeError(
                f"the world stands still at {self.now:.3f} s: all processes wait for each other"
            )


class RunningProcess:
    """A process that runs; each wait has a number, so that only the first of two wake-ups counts."""

    __slots__ = ("clock", "done", "number", "process")

    def __init__(self, clock: SimulatedClock, process: Process) -> None:
        self.clock, self.process, self.number = clock, process, 0
        self.done = Signal()

    def resume_at(self, number: int) -> Callable[[Any], None]:
        """Return what resumes the process from the wait of this number."""
        return lambda value: self._resume(number, value)

    def _resume(self, number: int, value: Any) -> None:
        if number != self.number:
            return
        self.number += 1
        try:
            wait = self.process.send(value)
        except StopIteration as end:
            self.done.fire(end.value)
            return
        resume = self.resume_at(self.number)
        deadline, signal = wait if isinstance(wait, tuple) else (wait, None)
        if isinstance(deadline, Signal):
            deadline, signal = FOREVER, deadline
        if signal is not None and signal.fired:
            self.clock.call_at(self.clock.now, resume, signal.value)
            return
        if deadline < FOREVER:
            self.clock.call_at(deadline, resume)
        if signal is not None:
            clock = self.clock
            signal.waiting.append(lambda value: clock.call_at(clock.now, resume, value))


class Places:
    """Places that calls take, and for which they queue in their order."""

    def __init__(self, places: int) -> None:
        self.places, self.taken = places, 0
        self._queue: deque[Signal] = deque()

    def take(self) -> Process:
        """Wait for a place."""
        if self.taken < self.places:
            self.taken += 1
            return
        place = Signal()
        self._queue.append(place)
        yield place

    def give_back(self) -> None:
        """Hand a place to the next in the queue."""
        if self._queue and self.taken <= self.places:
            self._queue.popleft().fire()
        else:
            self.taken -= 1

    def resize(self, places: int) -> None:
        """Change how many places there are; those that are taken stay taken."""
        self.places = places
        while self._queue and self.taken < self.places:
            self.taken += 1
            self._queue.popleft().fire()


def all_of(signals: list[Signal]) -> Process:
    """Wait until all signals have happened."""
    for signal in signals:
        if not signal.fired:
            yield signal
