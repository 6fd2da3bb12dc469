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


def without(pieces: pl.DataFrame, covered: pl.DataFrame, key: list[str]) -> pl.DataFrame:
    """Return what of each piece no covered one has. Within a table, none may overlap."""
    ends = [table.select(*key, at_us=name) for table in (pieces, covered) for name in ("from_us", "to_us")]
    parts = pl.concat(ends).unique().sort("at_us")
    parts = parts.with_columns(until_us=pl.col("at_us").shift(-1).over(key)).drop_nulls("until_us")
    ahead = covered.select(*key, at_us="from_us", covered_us="to_us").sort("at_us")
    begun = pieces.with_columns(at_us="from_us").sort("at_us")
    parts = parts.join_asof(ahead, on="at_us", by=key, check_sortedness=False)
    parts = parts.join_asof(begun, on="at_us", by=key, check_sortedness=False)
    is_free = (pl.col("covered_us") <= pl.col("at_us")).fill_null(True)
    parts = parts.filter(is_free & (pl.col("until_us") <= pl.col("to_us")))
    return parts.with_columns(from_us="at_us", to_us="until_us").select(pieces.columns)
