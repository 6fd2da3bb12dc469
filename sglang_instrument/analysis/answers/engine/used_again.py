"""Tell calls apart whose ids were used again: a client that starts anew may number its requests as before."""

from __future__ import annotations

from typing import Final

import polars as pl

_NAME: Final = r"^(.*) \((\d+)\)$"


def with_names(calls: pl.DataFrame, requests: pl.DataFrame, seconds: str = "call_sec") -> pl.DataFrame:
    """Give each call the name of the request that it waited for, where several had its id.

    Args:
        calls: rid; called_us, and its length: of the caller.
        requests: As `engine_requests` returns them: rid, start_us, end_us.
        seconds: The column of the length.

    Returns:
        `calls` with `rid` as in `requests`: that of the request which shares most time with the call.
    """
    named = requests.filter(pl.col("rid").str.contains(_NAME))
    if named.is_empty():
        return calls
    base = pl.col("rid").str.extract(_NAME, 1)
    ids = named.select(base).to_series()
    again = ids.filter(ids.is_in(requests["rid"].implode()) & ids.is_in(calls["rid"].implode())).implode()
    if not len(again[0]):
        return calls
    of_id = pl.when(base.is_in(again)).then(base).otherwise("rid")
    lives = requests.select("start_us", "end_us", id=of_id, name="rid").filter(pl.col("id").is_in(again))
    called_end = pl.col("called_us") + (pl.col(seconds) * 1e6).cast(pl.Int64)
    shared = pl.min_horizontal(called_end, "end_us") - pl.max_horizontal("called_us", "start_us")
    best = (
        calls.with_row_index("call")
        .join(lives, left_on="rid", right_on="id", how="inner")
        .sort(shared, descending=True, nulls_last=True)
        .unique("call", keep="first")
        .select("call", "name")
    )
    named_calls = calls.with_row_index("call").join(best, on="call", how="left", maintain_order="left")
    return named_calls.with_columns(rid=pl.coalesce("name", "rid")).drop("call", "name")
