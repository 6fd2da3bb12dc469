"""Tell whether requests flow through the workers, or come in batches that workers begin together."""

from typing import Any, Final

import polars as pl

from sglang_instrument.analysis.digests.digest import Digest

_MOST: Final = 0.5  # of the steps of workers
#: A lead in the begins of steps that is less than so many times its usual deviation is no lead of a clock.
_CONSTANT: Final = 3.0


def flows_of(workers: Digest) -> bool:
    """Return whether requests flow, each counted to the step whose weights it began with.

    Then a step is no batch that workers begin together: most of a worker's steps begin before its last one
    ended.

    Args:
        workers: The rows of the rollout workers.
    """
    steps = workers.steps.filter(~pl.col("validate"))
    key = ["launch", "worker"]
    steps = steps.group_by(*key, "step").agg(pl.col("start_us").min(), pl.col("end_us").max())
    reached = pl.col("end_us").cum_max().shift(1).over(key)
    overlaps = steps.sort(*key, "start_us").select(pl.col("start_us") < reached).to_series()
    share: Any = overlaps.drop_nulls().mean() or 0.0
    return float(share) > _MOST


def lead_of_begins(flows: bool) -> pl.Expr:
    """Return by how many microseconds the clock of a worker is ahead, as the begins of its steps tell.

    A clock's lead is constant: a worker that begins its steps sometimes more and sometimes less after the
    others begins late, and where requests flow, steps do not begin together at all.

    Args:
        flows: As `flows_of` returns it.

    Returns:
        An expression over `worker` and after_us: how much after the other workers it began each step.
    """
    usual = pl.lit(0.0) if flows else pl.col("after_us").median()
    varies = _CONSTANT * (pl.col("after_us") - usual).abs().median() > usual.abs()
    return pl.when(varies).then(0.0).otherwise(usual).over("worker").round().cast(pl.Int64)
