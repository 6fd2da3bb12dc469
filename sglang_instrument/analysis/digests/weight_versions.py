"""Find which weights made the replies of a request: the version with which it began, and that of its end."""

from typing import Final

import polars as pl

from sglang_instrument.analysis.digests.turns import ENGINE, REQUEST

#: Columns of versions, of records and of requests.
VERSIONS: Final = ("weight_version", "first_weight_version")


def with_versions(requests: pl.DataFrame, parts: pl.DataFrame) -> pl.DataFrame:
    """Fill in the versions that requests did not log, by their calls of the engine in the order of time.

    The last call has the version at the end, the first one that at the beginning. Where no call logs with
    which version it began, the end of the first one counts.

    Args:
        requests: With the columns of `VERSIONS`.
        parts: Of the requests, with the kind, the times and the versions of each.
    """
    known = pl.any_horizontal(pl.col(name).is_not_null() for name in VERSIONS)
    calls = parts.filter((pl.col("kind") == ENGINE) & pl.col("request_id").is_not_null() & known)
    if calls.is_empty():
        return requests
    of_calls = (
        calls.sort("start_us", maintain_order=True)
        .group_by(REQUEST, maintain_order=True)
        .agg(
            pl.col("weight_version").drop_nulls().last(),
            first_weight_version=pl.coalesce("first_weight_version", "weight_version").drop_nulls().first(),
        )
    )
    joined = requests.join(of_calls, on=REQUEST, how="left", suffix="_told", maintain_order="left")
    filled = [pl.coalesce(name, f"{name}_told").alias(name) for name in VERSIONS]
    return joined.with_columns(filled).select(requests.columns)
