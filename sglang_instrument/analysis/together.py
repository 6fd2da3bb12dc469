"""Number and sum rows within groups that lie together, in one pass; windows over many groups are slow."""

from collections.abc import Sequence

import polars as pl


def is_first(key: Sequence[str]) -> pl.Expr:
    """Return whether a row is the first of its group; the rows of a group must lie together."""
    return pl.any_horizontal(pl.col(name).ne_missing(pl.col(name).shift(1)) for name in key)


def sum_before(value: pl.Expr, first: str) -> pl.Expr:
    """Return the sum of what stands before a row in its group; `first` is the column of `is_first`.

    Exact for whole numbers and booleans alone: it is a difference of sums over all groups.
    """
    total = value.cum_sum() - value
    return total - pl.when(pl.col(first)).then(total).forward_fill()
