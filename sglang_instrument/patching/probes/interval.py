"""Tell whether enough time has gone by since the last time, for regions with `every`."""

from time import perf_counter


class Interval:
    """A time that has to go by, of a process: threads share it.

    Args:
        seconds: How long.
    """

    __slots__ = ("_next", "_seconds")

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._next = float("-inf")

    def is_over(self) -> bool:
        """Return whether the time has gone by since it began; it is at the first call."""
        return perf_counter() >= self._next

    def begin(self) -> None:
        """Let the time begin."""
        self._next = perf_counter() + self._seconds
