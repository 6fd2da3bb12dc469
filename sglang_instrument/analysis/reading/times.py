"""Compute when records began and ended, from their starts, durations and timestamps."""

from datetime import datetime, timezone
from typing import Final

import polars as pl

from sglang_instrument.analysis.reading.records.lines import EARLIEST_US, LATEST_US

_OFFSET: Final = r"(Z|[+-]\d\d:?\d\d)$"


def with_times(table: pl.DataFrame) -> pl.DataFrame:
    """Add start and end, both rounded down, so that a span never starts before the previous one ends."""
    span_us = (pl.col("duration_sec").fill_null(0.0) * 1e6).cast(pl.Int64)
    exact = pl.col("start_us").is_not_null()
    if table["stamp"].null_count() == len(table):
        return table.with_columns(end_us=pl.col("start_us") + span_us, exact=exact, local=pl.lit(False))
    return table.with_columns(
        stamp_us=_stamps_us(table["stamp"]),
        local=pl.col("stamp").is_not_null() & ~pl.col("stamp").str.contains(_OFFSET),
        exact=exact,
    ).with_columns(
        start_us=pl.coalesce("start_us", pl.col("stamp_us") - span_us),
        end_us=pl.coalesce(pl.col("start_us") + span_us, "stamp_us"),
    )


def _stamps_us(stamps: pl.Series) -> pl.Series:
    """Return timestamps as microseconds since the epoch; null where a timestamp is invalid."""
    usual = stamps.str.to_datetime("%Y-%m-%dT%H:%M:%S%.f%:z", time_unit="us", time_zone="UTC", strict=False)
    times_us = usual.dt.epoch("us")
    odd = times_us.is_null() & stamps.is_not_null()
    if odd.any():
        rows = odd.arg_true()
        times_us = times_us.scatter(rows, [epoch_us(stamp) for stamp in stamps.gather(rows)])
    return times_us.set(~times_us.is_between(EARLIEST_US, LATEST_US), None)


def epoch_us(timestamp: str) -> int | None:
    """Return a timestamp as microseconds since the epoch, None if invalid; no UTC offset counts as UTC."""
    try:
        moment = datetime.fromisoformat(timestamp.replace("Z", "+00:00"))
    except ValueError:
        return None
    if moment.tzinfo is None:
        moment = moment.replace(tzinfo=timezone.utc)
    time_us = round(moment.timestamp() * 1e6)
    return time_us if EARLIEST_US <= time_us <= LATEST_US else None
