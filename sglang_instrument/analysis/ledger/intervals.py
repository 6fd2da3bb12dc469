"""Cut intervals of time: from_us, to_us in microseconds."""

import polars as pl


def sec_between(from_us: str, to_us: str) -> pl.Expr:
    """Return the seconds from one column of microseconds to another."""
    return (pl.col(to_us) - pl.col(from_us)) / 1e6


def one_at_a_time(pieces: pl.DataFrame, key: list[str]) -> pl.DataFrame:
    """Remove overlaps: an instant that several pieces cover counts for the earliest.

    Files of one worker may overlap.
    """
    pieces = pieces.sort(*key, "from_us", "to_us")
    reach = pl.col("to_us").cum_max().shift(1)
    reach = reach.over(key) if key else reach
    pieces = pieces.with_columns(from_us=pl.max_horizontal("from_us", reach))
    return pieces.filter(pl.col("to_us") > pl.col("from_us"))


def clipped(pieces: pl.DataFrame, begin: str, end: str) -> pl.DataFrame:
    """Return what of each piece lies between these columns, with its seconds."""
    pieces = pieces.with_columns(
        from_us=pl.max_horizontal("from_us", begin), to_us=pl.min_horizontal("to_us", end)
    )
    return pieces.filter(pl.col("to_us") > pl.col("from_us")).with_columns(
        sec=sec_between("from_us", "to_us")
    )
