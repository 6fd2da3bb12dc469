"""Tell which request of an id each record is of, where a retry uses the id again."""

from typing import Final

import polars as pl

from sglang_instrument.analysis.digests.attempts import parts_with_attempts, with_attempts
from sglang_instrument.analysis.digests.rollups import PLACE
from sglang_instrument.analysis.timing.group_ids import assign_group_ids
from sglang_instrument.analysis.timing.nesting import nest

_IS_REQUEST: Final = (
    (pl.col("phase").cast(pl.Categorical) == "request").fill_null(False)
    & pl.col("duration_sec").is_not_null()
    & pl.col("request_id").is_not_null()
)


def attempts_of(records: pl.DataFrame) -> pl.Series:
    """Return for each record the `attempt` of the request that it is of; 0 where no request has its id again.

    Args:
        records: With the columns of `reader.COLUMNS`: all records of their files.
    """
    attempts = pl.repeat(0, len(records), dtype=pl.Int64, eager=True).alias("attempt")
    requests = records.filter(_IS_REQUEST)
    again = requests.filter(requests.select(*PLACE, "request_id").is_duplicated())
    if again.is_empty():
        return attempts
    rows = records.with_row_index("row").filter(pl.col("source").is_in(again["source"].unique().to_list()))
    rows = rows.with_columns(place=assign_group_ids(rows, PLACE)[0])
    spans = nest(rows)
    parts = pl.concat([spans, rows.filter(pl.col("duration_sec").is_null())], how="diagonal")
    parts = parts.select("row", "place", "request_id", "start_us", "span").drop_nulls("request_id")
    numbered = parts_with_attempts(parts, with_attempts(_outermost(spans)), spans)
    return attempts.scatter(numbered["row"], numbered["attempt"])


def _outermost(spans: pl.DataFrame) -> pl.DataFrame:
    """Return the spans of requests whose parent is not a span of the same request."""
    requests = spans.filter(_IS_REQUEST).select("place", "request_id", "span", "parent", "start_us", "end_us")
    above = requests.select(parent="span", request_id="request_id")
    return requests.join(above, on=["parent", "request_id"], how="anti")
