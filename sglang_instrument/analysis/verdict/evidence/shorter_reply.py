"""Tell how much sooner a step would have ended with one reply cut short."""

from typing import Any

import polars as pl

from sglang_instrument.analysis.ledger.ledger import STEP_OF_WORKER
from sglang_instrument.analysis.verdict.evidence.run_evidence import Evidence


def saved_by_cut(evidence: Evidence, requests: pl.DataFrame, row: dict[str, Any], tokens: float) -> float:
    """Return how much sooner the step would have ended with one reply cut to so many tokens."""
    mine = requests.filter(*(pl.col(name) == row[name] for name in (*STEP_OF_WORKER, "request_id")))
    cut = max(0.0, 1 - tokens / row["tokens"])
    lost = evidence.lost_in_requests(mine.with_columns(excess_sec=pl.col("sec") * cut))
    return max(float(lost["lost_sec"].sum()), _drained_for(evidence, row, cut))


def _drained_for(evidence: Evidence, row: dict[str, Any], cut: float) -> float:
    """Return for how long updates of the weights waited for what a cut would have saved of a call."""
    updates = evidence.update_windows
    calls = evidence.calls.filter(*(pl.col(name) == row[name] for name in (*STEP_OF_WORKER, "request_id")))
    calls = calls.filter(kind="engine").sort("sec")
    if updates.is_empty() or calls.is_empty():
        return 0.0
    longest = calls.row(-1, named=True)
    begin_us = longest["end_us"] - round(longest["sec"] * cut * 1e6)
    during = pl.min_horizontal("to_us", pl.lit(longest["end_us"])) - pl.max_horizontal(
        "from_us", pl.lit(begin_us)
    )
    waited: Any = updates.select((during / 1e6).max()).item()
    return max(0.0, float(waited or 0.0))
