"""Find the requests of rollouts that bind ids of requests and log no spans of whole requests."""

from collections.abc import Sequence
from typing import Final

import polars as pl

from sglang_instrument.analysis.digests.turns import KINDS
from sglang_instrument.analysis.digests.untimed import untimed_requests
from sglang_instrument.analysis.reading.files import File, ended_paths
from sglang_instrument.analysis.reading.folders import ROLE_OF_REQUESTS
from sglang_instrument.analysis.reading.last_open import UNENDED
from sglang_instrument.analysis.timing.grouped_sums import US

#: What records say of the request whose id they have.
_LABELS: Final = ("group", "sample", "agent", "parent_request")
_ID: Final = ["step", "validate", "request_id"]


def with_implied(requests: pl.DataFrame, records: pl.DataFrame, places: pl.DataFrame) -> pl.DataFrame:
    """Add a row for each id of a request, where a worker's step has no spans of whole requests.

    A request that is bound as that of another one, its parent, is added wherever it has no such span itself.
    Such a request lasts from the start of its first record to the end of its last one. Those of a dump
    without times are left to `untimed.with_untimed`.

    Args:
        requests: The spans of whole requests: place, request_id and others. Rows that are added have
            null for the others.
        records: All records, with `place`.
        places: Where records belong: role and step; `place` is the row.
    """
    numbered = places.with_row_index("place").cast({"place": pl.Int64})
    whole = requests.filter(pl.col("request_id").is_not_null()).select("place", "request_id")
    of_rollout = (pl.col("role") == ROLE_OF_REQUESTS) & pl.col("step").is_not_null()
    mine_places = numbered.filter(of_rollout).select("place")
    without = mine_places.join(whole, on="place", how="anti")
    requests = requests.with_columns(implied=False)
    children = _children(records, whole).join(mine_places, on="place", how="semi")
    if without.is_empty() and children.is_empty():
        return requests
    named = records.filter(pl.col("request_id").is_not_null())
    mine = named.join(without, on="place", how="semi")
    if len(children):
        others = named.join(without, on="place", how="anti")
        mine = pl.concat([mine, others.join(children, on=["place", "request_id"], how="semi")])
    mine = mine.join(untimed_requests(mine), on=["place", "request_id"], how="anti")
    rows = mine.group_by("place", "request_id").agg(
        *(pl.col(name).drop_nulls().first() for name in _LABELS),
        start_us=pl.col("start_us").min(),
        end_us=pl.col("end_us").max(),
        error=pl.col("error").sort_by("end_us").last(),
    )
    lasted = (pl.col("end_us") - pl.col("start_us")) * US
    rows = rows.with_columns(duration_sec=lasted, implied=True)
    return pl.concat([requests, rows.cast({"place": pl.Int64})], how="diagonal_relaxed")


def _children(records: pl.DataFrame, whole: pl.DataFrame) -> pl.DataFrame:
    """Return the requests that have a parent and no span of the whole request: place, request_id."""
    bound = records.filter(pl.col("parent_request").is_not_null() & pl.col("request_id").is_not_null())
    return bound.select("place", "request_id").unique().join(whole, on=["place", "request_id"], how="anti")


def only_certain(requests: pl.DataFrame, files: Sequence[File]) -> pl.DataFrame:
    """Drop implied requests that are parts of others, and mark those that did not end.

    Several processes of a step may log the same id, such as those of its tools: the request is that of the
    process that logs it as a whole, else that of the one that calls the engine. In a run that logs whole
    requests, those of a step that is not closed did not end.

    Args:
        requests: All requests of a run; `source` numbers each pair of file and run.
        files: The run's files.
    """
    if not requests["implied"].any():
        return requests
    rows = requests.with_row_index("row")
    is_implied = pl.col("implied").fill_null(False)
    whole = rows.filter(~is_implied)
    certain = rows.filter(is_implied).join(whole, on=_ID, how="anti")
    with_calls = certain.filter(pl.col("engine_sec") > 0)
    without = certain.filter(pl.col("engine_sec") <= 0).join(with_calls, on=_ID, how="anti")
    certain = pl.concat([with_calls, without])
    if len(whole):
        ended = ended_paths(files)
        is_ended = pl.Series([file.path in ended for file in files for _ in file.runs], dtype=pl.Boolean)
        error = pl.when(is_ended.gather(certain["source"])).then("error").otherwise(pl.lit(UNENDED))
        certain = certain.with_columns(error=error)
    whole = _with_work_of_others(whole, rows.filter(is_implied).join(certain, on="row", how="anti"))
    return pl.concat([whole, certain]).sort("row").drop("row")


def _with_work_of_others(whole: pl.DataFrame, parts: pl.DataFrame) -> pl.DataFrame:
    """Add to whole requests the kinds of work of which only other processes logged any, as of a reward."""
    kinds = [f"{kind}_sec" for kind in KINDS]
    last = whole.group_by(_ID).agg(attempt=pl.col("attempt").max())
    sums = parts.group_by(_ID).agg(pl.col(kinds).sum()).join(last, on=_ID)
    joined = whole.join(sums, on=[*_ID, "attempt"], how="left", suffix="_others", maintain_order="left")
    lacking = [
        pl.when(pl.col(name) > 0).then(name).otherwise(pl.coalesce(f"{name}_others", name)).alias(name)
        for name in kinds
    ]
    return joined.with_columns(lacking).select(whole.columns)
