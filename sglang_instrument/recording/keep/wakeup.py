"""Let the encoder's thread sleep, and wake it."""

import queue
from collections.abc import Callable
from typing import Any, Final

from sglang_instrument.recording.measure.spans import Span
from sglang_instrument.recording.safety.unpatched import original

_Queue: Final = original("queue", "SimpleQueue")


class Wakeup:
    """Lets a thread wait for its next tick, or until another one calls `wake`."""

    def __init__(self) -> None:
        self._wakes: queue.SimpleQueue[None] = _Queue()  # signal handlers may put, too

    def wake(self) -> None:
        """Wake the waiting thread, or make the next `wait` return at once."""
        if self._wakes.empty():
            self._wakes.put(None)

    def wait(self, tick_sec: float, most_ticks: int, buffer: list[Any]) -> int:
        """Wait for a tick, or up to `most_ticks` while the buffer is empty.

        Returns:
            The number of ticks that have passed; 0 if `wake` was called.
        """
        for tick in range(1, most_ticks + 1):
            try:
                self._wakes.get(timeout=tick_sec)
            except queue.Empty:
                if buffer:
                    return tick
            else:
                self._forget_wakes()
                return 0
        return most_ticks

    def _forget_wakes(self) -> None:
        while not self._wakes.empty():
            try:
                self._wakes.get_nowait()
            except queue.Empty:  # a second thread has taken it
                return


class WakingBuffer:
    """The buffer while the threads are not started, or the encoder's rests: it starts or wakes them."""

    __slots__ = ("_take",)

    def __init__(self, take: Callable[[Span], None]) -> None:
        self._take = take

    def append(self, span: Span, /) -> None:
        """Start or wake the threads, and pass the span on."""
        self._take(span)
