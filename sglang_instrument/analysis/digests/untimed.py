"""Find requests of which a record tells tokens or a reward, but no time: samples of a dump without traces."""

from typing import Final

import polars as pl

_REQUEST: Final = "async_rollout_request_complete"


def with_untimed(requests: pl.DataFrame, records: pl.DataFrame, places: pl.DataFrame) -> pl.DataFrame:
    """Return requests, and those whose records have no duration: theirs, and all times in it, are null.

    Args:
        requests: Those with a duration. `place` is the row in `places`.
        records: Of which instant events count, too.
        places: The columns of a place.
    """
    rows = untimed_requests(records)
    if rows.is_empty():
        return requests
    place = list(places.columns)
    rows = rows.join(places.with_row_index("place"), on=place, nulls_equal=True, maintain_order="left")
    rows = rows.with_columns(start_us="end_us", attempt=0, implied=False).join(
        requests, on=["place", "request_id"], how="anti"
    )
    same = [name for name in requests.columns if name in rows.columns]
    fitting = rows.select(pl.col(name).cast(requests.schema[name]) for name in same)
    return pl.concat([requests, fitting], how="diagonal")


def untimed_requests(records: pl.DataFrame) -> pl.DataFrame:
    """Return the records of whole requests that have no duration."""
    untimed = records["duration_sec"].is_null() & records["request_id"].is_not_null()
    rows = records.filter(untimed) if untimed.any() else records.clear()
    return rows.filter(rows["event"].cast(pl.String) == _REQUEST)
