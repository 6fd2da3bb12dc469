"""Find where a series may be cut so that all values after it are above all before, with least scatter.

Most series have no such cut. Comparing all cuts one by one takes time that grows with the square of their
number: for 30,000 steps, minutes.
"""

from collections.abc import Sequence
from heapq import heappush, heappushpop
from typing import Any, Final

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

_ROUNDING: Final = 1e-9  # far more than sums of so many values are off, as a share of their size


def cuts_with_least_scatter(values: Array, fewest: int) -> Sequence[int]:
    """Return the cuts that leave least scatter but for rounding; none if no cut leaves the sides apart.

    Args:
        values: The series.
        fewest: Values on each side of a cut.

    Returns:
        The numbers of values before the cuts, in ascending order. Scatter is the sum of the distances from
        the medians of both sides.
    """
    cuts = range(fewest, len(values) - fewest + 1)
    if not cuts or not np.isfinite(values).all():
        return cuts
    highest = np.maximum.accumulate(values)
    lowest = np.minimum.accumulate(values[::-1])[::-1]
    before, after = slice(cuts[0] - 1, cuts[-1]), slice(cuts[0], cuts[-1] + 1)
    if not (lowest[after] > highest[before]).any():
        return []
    scatter = _scatter_of_begins(values)[before] + _scatter_of_begins(values[::-1])[::-1][after]
    near = scatter <= scatter.min() + _ROUNDING * (1.0 + float(np.abs(values).sum()))
    return [cuts[number] for number in np.flatnonzero(near)]


def _scatter_of_begins(values: Array) -> Array:
    """Return for the first value, the first two, and so on, the sum of their distances from their median."""
    low: list[float] = []  # the lower half, negated, so that its largest comes first
    high: list[float] = []
    below = above = 0.0
    scatter = np.empty(len(values))
    for number, value in enumerate(values.tolist()):
        if number % 2 == 0:  # the lower half gets one more: the least of the upper half and the value
            least = heappushpop(high, value)
            above += value - least
            heappush(low, -least)
            below += least
        else:
            largest = -heappushpop(low, -value)
            below += value - largest
            heappush(high, largest)
            above += largest
        # Of an odd number, the lower half has one more, the median.
        scatter[number] = above - below - low[0] * (len(low) - len(high))
    return scatter
