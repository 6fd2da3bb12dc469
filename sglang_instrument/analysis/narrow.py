"""Reduce the records of a batch to what is asked of single events, so that a whole run fits into memory."""

from collections.abc import Sequence

import polars as pl

from sglang_instrument.analysis.nesting import nest_with_children
from sglang_instrument.analysis.walls import split_wall

_OF_WORKER = ("source", "role", "step", "validate", "worker")


def narrow_events(records: pl.DataFrame) -> pl.DataFrame:
    """Return what `events.event_table` needs of spans, and of records without a duration."""
    columns = (*_OF_WORKER, "event", "phase", "duration_sec")
    spans = split_wall(*nest_with_children(records)).select(*columns, "self_sec", "wall_sec")
    points = records.filter(pl.col("duration_sec").is_null()).select(columns)
    return pl.concat([spans, points], how="diagonal").cast({pl.Categorical: pl.String})


def event_times(records: pl.DataFrame, events: Sequence[str]) -> pl.DataFrame:
    """Return how long events lasted: a row an event and request, and one for what is in no request.

    Args:
        records: Of whole steps of workers.
        events: Their names.

    Returns:
        source, role, step, validate, worker; request_id, null for what belongs to none; event; sec: in a
        request the union of its spans, so that those inside others or side by side count once; outside, what
        none of their children takes, for requests may be among these.
    """
    spans, _ = nest_with_children(records)
    chosen = spans.with_columns(pl.col("event", "role").cast(pl.String))
    chosen = chosen.filter(pl.col("event").is_in(list(events))).sort(
        "start_us", "end_us", maintain_order=True
    )
    key = [*_OF_WORKER, "request_id", "event"]
    reach = pl.col("end_us").cum_max().shift(1).over(key).fill_null(pl.col("start_us"))
    fresh = (pl.col("end_us") - pl.max_horizontal("start_us", reach)).clip(lower_bound=0) / 1e6
    sec = pl.when(pl.col("request_id").is_null()).then("self_sec").otherwise(fresh)
    return chosen.with_columns(sec=sec).group_by(key).agg(pl.col("sec").sum())
