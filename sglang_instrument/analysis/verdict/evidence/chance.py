"""Estimate how likely it is that a value, or several, are just drawn from the others."""

import math
from typing import Final

import polars as pl

_FEWEST_OF_A_TAIL: Final = 40  # with fewer values, their tail cannot be estimated
_TAIL: Final = 0.1  # share of them that forms the tail


def chance_to_reach(others: pl.Series, reached: float, fewest: int = _FEWEST_OF_A_TAIL) -> float:
    """Return the probability that one more value from the distribution of the others is at least as large.

    Args:
        others: All values but the one in question.
        reached: The value in question.
        fewest: The number of others needed to extrapolate beyond the largest of them.
    """
    above = int((others >= reached).sum())
    share = (above + 1) / (len(others) + 1)
    if above == 0 and len(others) >= fewest:
        tail = max(5, int(len(others) * _TAIL))
        share *= chance_beyond(others.top_k(tail + 1).sort(descending=True).to_list(), reached)
    return share


def chance_beyond(longest: list[float], reached: float) -> float:
    """Return the probability that a value beyond the longest one reaches this far.

    Computed from a Pareto distribution with the tail's exponent (Hill's estimate). Its tail is heavier than
    that of most times, so the probability is rather too large.

    Args:
        longest: The tail, the longest first, and the value after it.
        reached: The value beyond the longest.
    """
    falls = sum(math.log(one / longest[-1]) for one in longest[:-1]) / (len(longest) - 1)
    return 0.0 if falls == 0 else math.exp(-math.log(reached / longest[0]) / falls)


def chance_of_so_many(number: int, of: int, share: float) -> float:
    """Return the probability that at least `number` of so many draws reach what a `share` of all reaches."""
    from scipy.special import bdtrc

    return 1.0 if number <= 0 else float(bdtrc(number - 1, of, share))


def tail_of(values: pl.Series) -> list[float]:
    """Return the longest tenth of the values, the longest first, and the value after it."""
    longest: list[float] = values.top_k(max(5, int(len(values) * _TAIL)) + 1).sort(descending=True).to_list()
    return longest
