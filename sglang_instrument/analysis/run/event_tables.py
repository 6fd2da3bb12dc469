"""Reduce records to what questions about single events need, so that a whole run fits into memory."""

from collections.abc import Sequence

import polars as pl

from sglang_instrument.analysis.timing.grouped_sums import US
from sglang_instrument.analysis.timing.nesting import nest_and_clip
from sglang_instrument.analysis.timing.wall_time import split_wall_time

_OF_WORKER = ("source", "role", "step", "validate", "worker")


def event_rows(records: pl.DataFrame) -> pl.DataFrame:
    """Return the columns of spans and instant events that `events.event_table` needs."""
    columns = (*_OF_WORKER, "event", "phase", "duration_sec")
    spans = split_wall_time(*nest_and_clip(records)).select(*columns, "without_nested_sec", "steps_sec")
    instants = records.filter(pl.col("duration_sec").is_null()).select(columns)
    return pl.concat([spans, instants], how="diagonal").cast({pl.Categorical: pl.String})


def event_times(records: pl.DataFrame, events: Sequence[str]) -> pl.DataFrame:
    """Return how long events lasted: one row per event and request, and one for the time outside requests.

    Args:
        records: Of whole steps of workers.
        events: Their names.

    Returns:
        source, role, step, validate, worker; request_id: null outside requests; event; sec: within a request,
        the union of its spans, so that nested and concurrent ones count once; outside requests, the self
        time, for requests may run inside.
    """
    spans, _ = nest_and_clip(records)
    chosen = spans.with_columns(pl.col("event", "role").cast(pl.String))
    chosen = chosen.filter(pl.col("event").is_in(list(events))).sort(
        "start_us", "end_us", maintain_order=True
    )
    key = [*_OF_WORKER, "request_id", "event"]
    reach = pl.col("end_us").cum_max().shift(1).over(key).fill_null(pl.col("start_us"))
    fresh = (pl.col("end_us") - pl.max_horizontal("start_us", reach)).clip(lower_bound=0) * US
    sec = pl.when(pl.col("request_id").is_null()).then("without_nested_sec").otherwise(fresh)
    return chosen.with_columns(sec=sec).group_by(key, maintain_order=True).agg(pl.col("sec").sum())
