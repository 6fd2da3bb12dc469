"""Number the stretches of work of a log that knows no steps: each begins after a time without any work."""

from typing import Final

import polars as pl

#: So long nothing was in flight before a new stretch of work. A trainer trains meanwhile.
IDLE_SEC: Final = 5.0


def number_windows(start_us: pl.Series, end_us: pl.Series, idle_sec: float = IDLE_SEC) -> pl.Series:
    """Return for each piece of work the number of its stretch, from 0.

    Args:
        start_us: When each piece began; null where it is not known.
        end_us: When it ended.
        idle_sec: The shortest time without any work between two stretches.
    """
    work = pl.DataFrame({"start_us": start_us, "end_us": end_us}).with_row_index("row")
    ordered = work.sort("start_us", "end_us", nulls_last=True).with_columns(
        until=pl.col("end_us").cum_max().shift(1)
    )
    is_new = (pl.col("start_us") - pl.col("until") >= int(idle_sec * 1e6)).fill_null(False)
    windows: pl.Series = ordered.with_columns(window=is_new.cum_sum().cast(pl.Int64)).sort("row")["window"]
    return windows
