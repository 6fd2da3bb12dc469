"""Compute Theil and Sen's slope, the median slope between two values of a series, without all pairs at once.

The slope between i < j is at least t if value j - t j >= value i - t i. So counting pairs in order tells how
many slopes are at least t, in O(n log^2 n), and bisection finds the median.
"""

from typing import Any, Final

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]

_MOST_FOR_ALL_PAIRS: Final = 1_000  # values, of which all slopes fit into 4 MB
_STEPS: Final = 200  # of a bisection: it ends before, where its ends are near enough


def median_slope(values: Array) -> float:
    """Return the median of the slopes between all pairs of values that are one step apart from the next."""
    if len(values) <= _MOST_FOR_ALL_PAIRS:
        slopes = [(values[apart:] - values[:-apart]) / apart for apart in range(1, len(values))]
        return float(np.median(np.concatenate(slopes)))
    pairs = len(values) * (len(values) - 1) // 2
    low = _slope_of_rank(values, (pairs - 1) // 2)
    return low if pairs % 2 else (low + _slope_of_rank(values, pairs // 2)) / 2


def reaches(values: Array, slope: float) -> bool:
    """Return whether at least half of all slopes are at least as large; so the median may be."""
    pairs = len(values) * (len(values) - 1) // 2
    return 2 * _pairs_in_order(values - slope * np.arange(len(values))) >= pairs


def _slope_of_rank(values: Array, rank: int) -> float:
    """Return the slope that has `rank` slopes below it, by bisection down to neighbouring numbers."""
    steps = np.diff(values)
    pairs, times = len(values) * (len(values) - 1) // 2, np.arange(len(values))
    low, high = float(steps.min()), float(steps.max())
    for _ in range(_STEPS):
        middle = low + (high - low) / 2
        if not low < middle < high or high - low <= 1e-13 * max(abs(low), abs(high)):
            break
        below = pairs - _pairs_in_order(values - middle * times)
        low, high = (middle, high) if below <= rank else (low, middle)
    return low


def _pairs_in_order(values: Array) -> int:
    """Return how many pairs i < j have value i <= value j: sorted blocks are joined two by two."""
    ranks = np.searchsorted(np.sort(values), values).astype(np.int64)
    size = 1 << (len(ranks) - 1).bit_length()
    above = size  # padding at the end is above all, and is not counted
    blocks = np.full(size, above, dtype=np.int64)
    blocks[: len(ranks)] = ranks
    total, width = 0, 1
    while width < size:
        halves = blocks.reshape(-1, 2, width)
        offsets = np.arange(len(halves), dtype=np.int64)[:, None] * (above + 1)
        left, right = (halves[:, 0] + offsets).ravel(), halves[:, 1] + offsets
        real = halves[:, 1] < above
        reached = np.searchsorted(left, right[real], side="right")
        total += int(reached.sum()) - int((np.nonzero(real)[0] * width).sum())
        blocks = np.sort(blocks.reshape(-1, 2 * width), axis=1)
        width *= 2
    return total
