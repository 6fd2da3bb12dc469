"""Show how often each event happened, how long it took, and its share of the steps' time."""

import polars as pl


def event_table(spans: pl.DataFrame, instants: pl.DataFrame | None = None) -> pl.DataFrame:
    """Return one row per event, the largest share first.

    Args:
        spans: Nested spans, as in `Run.spans`, of the steps and workers to count.
        instants: Records without a duration, to be counted as well.

    Returns:
        `event`, `phase`, `count`; `total_sec`: sum of the durations, in which nested and concurrent spans
        count several times; `self_sec`: the same without the time of child spans; `share`: sum of `wall_sec`
        over that of all events, so that shares add up to 1; `p50_sec`, `p99_sec` and `max_sec` of the
        durations, interpolated linearly. Instant events have null there.
    """
    duration = pl.col("duration_sec")
    whole = spans["wall_sec"].sum()
    table = spans.group_by(pl.col("event").cast(pl.String), pl.col("phase").cast(pl.String)).agg(
        count=pl.len().cast(pl.Int64),
        total_sec=duration.sum(),
        self_sec=pl.col("self_sec").sum(),
        share=pl.col("wall_sec").sum() / whole if whole else pl.lit(0.0),
        p50_sec=duration.quantile(0.5, "linear"),
        p99_sec=duration.quantile(0.99, "linear"),
        max_sec=duration.max(),
    )
    if instants is not None:
        counted = instants.filter(pl.col("duration_sec").is_null()).group_by(
            pl.col("event").cast(pl.String), pl.col("phase").cast(pl.String)
        )
        table = pl.concat([table, counted.agg(count=pl.len().cast(pl.Int64))], how="diagonal")
    return table.sort("share", "total_sec", "event", descending=[True, True, False], nulls_last=True)
