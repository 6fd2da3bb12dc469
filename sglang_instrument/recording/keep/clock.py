"""Tell wall time from the monotonic clock: one anchor a process, so that starts never run backwards."""

import os
import time
from datetime import datetime
from typing import Final


class Clock:
    """The anchor of one process: what the wall clock said at one moment of `perf_counter_ns`."""

    def __init__(self) -> None:
        self._offset_us = _offset_us()
        self._second = (-1, "", "")  # what is known of the last one, up to its microseconds and after them

    def epoch_us(self, perf_ns: int) -> int:
        """Return a moment of `perf_counter_ns` in microseconds since the Unix epoch."""
        return perf_ns // 1000 + self._offset_us

    def timestamp(self, epoch_us: int) -> str:
        """Return ISO 8601 local time with microseconds and UTC offset; several threads may ask.

        Only the first call of a second formats a date: that costs thirty times the rest.
        """
        second, microsecond = divmod(epoch_us, 1_000_000)
        known, prefix, suffix = self._second
        if second != known:
            local = datetime.fromtimestamp(second).astimezone()
            prefix, suffix = local.strftime("%Y-%m-%dT%H:%M:%S."), local.isoformat()[19:]
            self._second = second, prefix, suffix
        return f"{prefix}{microsecond:06d}{suffix}"

    def now_us(self) -> int:
        """Return now in microseconds since the Unix epoch, on the same scale as `epoch_us`."""
        return self.epoch_us(time.perf_counter_ns())

    @staticmethod
    def pair() -> dict[str, int]:
        """Return both clocks at one moment, in nanoseconds, for readers that align hosts or see drift."""
        offset_us = _offset_us()
        perf_ns = time.perf_counter_ns()
        return {"wall_ns": perf_ns + offset_us * 1000, "perf_ns": perf_ns}


def _offset_us() -> int:
    """Return wall minus monotonic time: of a few tries the one read in the shortest time."""
    tries = []
    for _ in range(5):
        before = time.perf_counter_ns()
        wall = time.time_ns()
        after = time.perf_counter_ns()
        tries.append((after - before, wall - (before + after) // 2))
    return min(tries)[1] // 1000


HOST: Final = os.uname().nodename
