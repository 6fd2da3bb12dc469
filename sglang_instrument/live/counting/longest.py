"""Keep the longest spans of an event: how far apart they are tells how long the next one may be."""

from bisect import insort
from collections.abc import Iterable
from typing import Final

#: So many are kept.
MOST: Final = 6
_OF_ALL: Final = 3  # of so many spans, one is among the longest: the shorter ones tell nothing of these


class Longest:
    """The longest of the spans that ended.

    Attributes:
        count: How many ended, where that is counted here.
        spans_sec: At most `MOST`, ascending.
        least_sec: A shorter span changes nothing.
    """

    __slots__ = ("count", "least_sec", "spans_sec")

    def __init__(self) -> None:
        self.count = 0
        self.spans_sec: list[float] = []
        self.least_sec = 0.0

    def add(self, sec: float) -> None:
        """Take in a span, and count it."""
        self.count += 1
        if sec > self.least_sec:
            self.note(sec)

    def note(self, sec: float) -> None:
        """Take in a span that is longer than `least_sec`."""
        insort(self.spans_sec, sec)
        if len(self.spans_sec) > MOST:
            del self.spans_sec[0]
        if len(self.spans_sec) == MOST:
            self.least_sec = self.spans_sec[0]

    @property
    def longest_sec(self) -> float:
        """The longest; 0 if none ended."""
        return self.spans_sec[-1] if self.spans_sec else 0.0


def longest_of(counted: Iterable[tuple[int, Longest]]) -> list[float]:
    """Return the longest spans of several processes together, ascending: at most `MOST`, and of many spans.

    Args:
        counted: How many spans ended, and the longest of them.
    """
    count = 0
    spans_sec: list[float] = []
    for number, longest in counted:
        count += number
        spans_sec += longest.spans_sec
    return sorted(spans_sec)[-min(MOST, max(1, count // _OF_ALL) + 1) :]
