"""Compute wall time from the monotonic clock: one anchor per process, so that start times never go back."""

import os
import time
from datetime import datetime
from typing import Final


class Clock:
    """The anchor of one process: the offset of the wall clock from `perf_counter_ns`, read once."""

    def __init__(self) -> None:
        self._offset_us = _offset_us()
        self._second = (-1, "", "")  # the last second, and its text before and after the microseconds

    def epoch_us(self, perf_ns: int) -> int:
        """Convert a time of `perf_counter_ns` to microseconds since the Unix epoch."""
        return perf_ns // 1000 + self._offset_us

    def timestamp(self, epoch_us: int) -> str:
        """Return ISO 8601 local time with microseconds and UTC offset; several threads may call this.

        Only the first call in each second formats a date, which takes thirty times as long as the rest.
        """
        second, microsecond = divmod(epoch_us, 1_000_000)
        known, prefix, suffix = self._second
        if second != known:
            # Not strftime(), which imports a module: the interpreter's last records cannot import.
            local = datetime.fromtimestamp(second).astimezone().isoformat()
            prefix, suffix = f"{local[:19]}.", local[19:]
            self._second = second, prefix, suffix
        return f"{prefix}{microsecond:06d}{suffix}"

    def now_us(self) -> int:
        """Return now in microseconds since the Unix epoch, on the same scale as `epoch_us`."""
        return self.epoch_us(time.perf_counter_ns())

    @staticmethod
    def pair() -> dict[str, int]:
        """Return both clocks at the same time, in nanoseconds, so that readers can align hosts."""
        offset_us = _offset_us()
        perf_ns = time.perf_counter_ns()
        return {"wall_ns": perf_ns + offset_us * 1000, "perf_ns": perf_ns}


def _offset_us() -> int:
    """Return wall time minus monotonic time: of five readings, the one that took the shortest time."""
    tries = []
    for _ in range(5):
        before = time.perf_counter_ns()
        wall = time.time_ns()
        after = time.perf_counter_ns()
        tries.append((after - before, wall - (before + after) // 2))
    return min(tries)[1] // 1000


HOST: Final = os.uname().nodename
