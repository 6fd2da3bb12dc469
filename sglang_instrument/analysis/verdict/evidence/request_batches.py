"""Pick the requests for whose end a worker waited, and tell one rollout of a step from the next."""

from typing import Final

import polars as pl

from sglang_instrument.analysis.ledger.ledger import STEP_OF_WORKER

LEAST_SEC: Final = 0.5  # a shorter time is not worth a finding
_ABORT: Final = "abort"  # why a request ended that its trainer did not need


def numbered_batches(requests: pl.DataFrame) -> pl.DataFrame:
    """Return requests with `batch`: a batch of a worker begins when all its requests before have ended."""
    requests = requests.sort(*STEP_OF_WORKER, "start_us")
    reached = pl.col("end_us").cum_max().shift(1).over(STEP_OF_WORKER)
    is_first = (pl.col("start_us") > reached).fill_null(value=False)
    return requests.with_columns(batch=is_first.cast(pl.Int64).cum_sum())


def uncut(requests: pl.DataFrame) -> pl.DataFrame:
    """Return the requests for whose end their worker waited.

    Those that nobody aborted; and of those that were, the ones that ended long after these: an abort ends
    their engine calls at once, so that the trainer waited for a tool or a reward of theirs.
    """
    aborted = (pl.col("finish_reason") == _ABORT).fill_null(value=False)
    last_us = pl.col("end_us").filter(~aborted).max().over(STEP_OF_WORKER)
    is_late = (pl.col("end_us") > last_us + LEAST_SEC * 1e6).fill_null(value=True)
    return requests.filter(~aborted | is_late)
