"""Tell which time of engine calls was a queue that comes and goes in this run: no engine was slow for it."""

from typing import Final

import polars as pl

from sglang_instrument.analysis.ledger.ledger import STEP
from sglang_instrument.analysis.verdict.evidence.calls import OF_CALL
from sglang_instrument.analysis.verdict.evidence.effects import SPREADS, robust_spread
from sglang_instrument.analysis.verdict.evidence.run_evidence import Evidence

_FLOOR_SEC: Final = 0.1  # of a queue: below it, differences are nothing
_LEAST_SPREAD: Final = 0.1


def explained_by_queues(evidence: Evidence) -> pl.DataFrame:
    """Return what calls queued longer than usual, in steps whose queue is as queues of this run are.

    The physical fact: a scheduler admitted the call late, and then served it as fast as others. A server near
    its capacity has long queues in some steps and none in others, by what was drawn. A queue that is far
    longer than in the other steps stays with its calls.

    Returns:
        row, excess_sec of `Evidence.calls`.
    """
    calls = evidence.served.drop_nulls("queue_sec")
    if calls.is_empty():
        return pl.DataFrame(schema={"row": pl.UInt32, "excess_sec": pl.Float64})
    steps = calls.group_by(STEP).agg(log=(pl.col("queue_sec").mean() + _FLOOR_SEC).log())
    steps = steps.with_columns(off=pl.col("log") - pl.col("log").median().over("validate"))
    least = SPREADS * robust_spread(steps["off"], _LEAST_SPREAD)
    usual_sec = float(calls["queue_sec"].median())  # type: ignore[arg-type]  # of floats
    calls = calls.join(steps.filter(pl.col("off") <= least), on=STEP, how="semi")
    longer = calls.with_columns(excess_sec=pl.col("queue_sec") - usual_sec).filter(pl.col("excess_sec") > 0)
    sums = longer.group_by(OF_CALL).agg(pl.col("excess_sec").sum())
    engine = evidence.calls.filter(kind="engine").drop("excess_sec", strict=False)
    return engine.join(sums, on=OF_CALL).select("row", "excess_sec")
