"""Find cliffs: many values that end at one number, such as a time-out, a cap or a number of retries."""

from collections.abc import Sequence
from typing import Final, NamedTuple

_FEWEST: Final = 5  # values at the cliff
_LEAST_SHARE: Final = 0.005
_WIDTH: Final = 0.01  # of the value, on either side
_TIMES_NEAR: Final = 4.0  # as many as in the same width on both sides
_NO_WIDTH: Final = 0.0005  # of the value: less is not said
_LEAST: Final = 0.2  # seconds: shorter calls end at one time for many reasons


class Cliff(NamedTuple):
    """Values that end at one number.

    Attributes:
        value: The number: their median.
        low: The smallest of them.
        high: The largest of them.
        calls: How many they are.
        above: How many values are larger.
    """

    value: float
    low: float
    high: float
    calls: int
    above: int

    def words(self, unit: str) -> str:
        """Return the number with its width, such as "1,800 +- 2 s"."""
        width = max(self.high - self.value, self.value - self.low)
        if width < _NO_WIDTH * self.value:
            return f"{self.value:,.4g} {unit}"
        return f"{self.value:,.4g} +- {width:,.2g} {unit}"


def cliffs_in(values: Sequence[float]) -> list[Cliff]:
    """Return the cliffs among values, the most frequent first.

    A cliff has at least five values within 1 % of one, and four times as many as stretches of that width
    beside it hold on average.

    Args:
        values: Seconds of calls, or counts.
    """
    ordered = sorted(value for value in values if value >= _LEAST)
    cliffs: list[Cliff] = []
    place = 0
    while place < len(ordered):
        last = _reach(ordered, place, ordered[place] * (1 + 2 * _WIDTH))
        count = last - place
        if count >= max(_FEWEST, _LEAST_SHARE * len(values)) and _stands_out(ordered, place, last):
            middle = ordered[place + count // 2]
            cliffs.append(Cliff(middle, ordered[place], ordered[last - 1], count, len(ordered) - last))
            place = last
        else:
            place += 1
    return sorted(cliffs, key=lambda cliff: -cliff.calls)


def _reach(ordered: Sequence[float], place: int, end: float) -> int:
    while place < len(ordered) and ordered[place] <= end:
        place += 1
    return place


def _stands_out(ordered: Sequence[float], first: int, last: int) -> bool:
    """Return whether a stretch holds many more values than the ten stretches on either side."""
    low, high = ordered[first] * (1 - 10 * _WIDTH), ordered[last - 1] * (1 + 10 * _WIDTH)
    near = sum(low <= value <= high for value in ordered) - (last - first)
    return (last - first) >= _TIMES_NEAR * near / 10 and near <= (last - first)


def count_cliff(counts: Sequence[int]) -> int | None:
    """Return the largest of many counts, if far more values have it than have those near it; else None.

    Args:
        counts: Such as tokens of responses.
    """
    most = max(counts, default=0)
    last = sum(count == most for count in counts)
    width = max(1, round(10 * _WIDTH * most))
    near = sum(most - width <= count < most for count in counts)
    stands_out = last >= _TIMES_NEAR * max(1.0, near / width)
    return most if most > 1 and last >= _FEWEST and stands_out and last < len(counts) else None
