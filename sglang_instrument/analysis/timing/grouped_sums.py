"""Number and sum rows within groups of adjacent rows, in one pass; polars' windows are slow here."""

from collections.abc import Sequence
from typing import Final

import polars as pl

#: Seconds in a microsecond. Multiply by it: polars rounds the division of one row in another way than that of
#: many, and an answer must not depend on how many rows a batch has.
US: Final = 1e-6


def is_first(key: Sequence[str]) -> pl.Expr:
    """Return whether a row is the first of its group; the rows of a group must be adjacent."""
    return pl.any_horizontal(pl.col(name).ne_missing(pl.col(name).shift(1)) for name in key)


def sum_before(value: pl.Expr, first: str) -> pl.Expr:
    """Return the sum over the earlier rows of a row's group; `first` is the column made by `is_first`.

    Exact only for integers and booleans: it is a difference of running sums over all groups.
    """
    total = value.cum_sum() - value
    return total - pl.when(pl.col(first)).then(total).forward_fill()
