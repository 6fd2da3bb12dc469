"""Say for each request which step of the trainer trained on it."""

import polars as pl

from sglang_instrument.analysis.answers.asynchronous.fates import logs_consumption, sample_fates
from sglang_instrument.analysis.digests.digest import Digest


def with_trained_steps(requests: pl.DataFrame, digest: Digest) -> pl.DataFrame:
    """Add `trained_step`, the step of the trainer that took each request; null where none is known.

    Args:
        requests: As `request_table` returns them.
        digest: The one that they are from.
    """
    if not logs_consumption(digest):
        return requests.with_columns(trained_step=pl.lit(None, pl.Int64))
    key = ["step", "validate", "worker", "request_id"]
    used = sample_fates(digest).drop_nulls("trained_step").select(*key, "trained_step").unique(key)
    return requests.join(used, on=key, how="left", maintain_order="left")
