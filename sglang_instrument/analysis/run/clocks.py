"""Estimate how far the clocks of the workers' hosts differ, from the barriers that they leave together."""

import polars as pl

from sglang_instrument.analysis.digests.digest import Digest

BARRIER = ["step", "validate", "barrier"]


def numbered_barriers(digest: Digest) -> pl.DataFrame:
    """Return the barriers of the workers; `barrier` numbers those of a worker and step from 0."""
    number = pl.col("start_us").rank("ordinal").over("step", "validate", "worker") - 1
    barriers = digest.of_workers().barriers.with_columns(barrier=number.cast(pl.Int64))
    return barriers.sort(*BARRIER, "worker")


def clock_table(digest: Digest) -> pl.DataFrame:
    """Return the clock offset of each worker, one row per worker.

    Returns:
        worker; barriers: how many it left together with others; offset_sec: how far its clock is ahead of the
            median worker's, as the median over these barriers; residual_sec: the largest deviation of a
            barrier from that: clock drift, and workers that do not leave at the same time.
    """
    exits = (
        numbered_barriers(digest).with_columns(workers=pl.len().over(BARRIER)).filter(pl.col("workers") > 1)
    )
    later = (pl.col("end_us") - pl.col("end_us").median().over(BARRIER)) / 1e6
    exits = exits.with_columns(later=later).with_columns(offset=pl.col("later").median().over("worker"))
    # If the median worker's clock drifts, all deviations of a barrier share a part: that part is no drift of
    # theirs.
    left = pl.col("later") - pl.col("offset")
    exits = exits.with_columns(left=left - left.median().over(BARRIER))
    return (
        exits.group_by("worker")
        .agg(
            barriers=pl.len().cast(pl.Int64),
            offset_sec=pl.col("offset").first(),
            residual_sec=pl.col("left").abs().max(),
        )
        .sort("worker")
    )
