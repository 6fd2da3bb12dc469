"""Number groups of rows and sort rows, faster than polars' own group_by and sort on our data."""

from collections.abc import Sequence

import polars as pl


def assign_group_ids(table: pl.DataFrame, key: Sequence[str]) -> tuple[pl.Series, pl.DataFrame]:
    """Return for each row the number of its combination of values, and the combinations in order.

    Each row is compared with the one before, which is much faster than group_by when equal rows are adjacent.
    """
    differs = [pl.col(name).ne_missing(pl.col(name).shift(1)) for name in key]
    first = pl.int_range(pl.len()) == 0
    begins = table.select(pl.any_horizontal(first, *differs)).to_series()
    runs = table.select(key).filter(begins)
    combinations = runs.unique(maintain_order=True)
    number: pl.Series = begins.cast(pl.Int64).cum_sum() - 1
    if len(combinations) < len(runs):
        known = combinations.with_row_index("number")
        of_run = runs.join(known, on=list(key), how="left", nulls_equal=True, maintain_order="left")
        number = of_run["number"].cast(pl.Int64).gather(number)
    return number, combinations


def sort_order(values: pl.Series) -> pl.Series:
    """Return the rows sorted by their non-negative values; equal values keep their order.

    Value and row packed into one number sort twice as fast as arg_sort(), if 63 bits hold both.
    """
    highest = values.max()
    width = len(values)
    if not isinstance(highest, int) or highest >= 2**63 // width - 1:
        return values.arg_sort()
    row: pl.Series = (values * width + pl.int_range(width, eager=True)).sort() % width
    return row
