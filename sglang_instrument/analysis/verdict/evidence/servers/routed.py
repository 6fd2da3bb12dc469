"""Pick the calls of conversations whose server or cache is known, and measure what they lost by either."""

from typing import Final

import polars as pl

from sglang_instrument.analysis.ledger.ledger import STEP, STEP_OF_WORKER
from sglang_instrument.analysis.verdict.evidence.run_evidence import Evidence

FEWEST_CALLS: Final = 8  # with fewer calls, their share in the cache is not judged
SOME_SHARE: Final = 0.3  # of the expected tokens; where less is usual, nothing can collapse
NOT_PLANTED: Final = "the simulator has no router; tests/support/routed_run.py makes such runs"
_MISSING: Final = pl.col("missing_tokens")


def later_calls(evidence: Evidence) -> pl.DataFrame:
    """Return the calls whose conversation had left something in a cache, and of which the cache is known."""
    calls = evidence.served
    known = pl.col("cached_tokens").is_not_null() & (pl.col("expected_tokens") > 0)
    return calls.filter(known & (pl.col("number") > 0))


def in_step_of(rows: pl.DataFrame, part: pl.DataFrame) -> pl.DataFrame:
    """Return the rows of the step of `part`."""
    return rows.filter(*(pl.col(name) == part[name][0] for name in STEP))


def hit_share() -> pl.Expr:
    """Return the share of the expected tokens that the caches had."""
    return pl.min_horizontal("cached_tokens", "expected_tokens").sum() / pl.col("expected_tokens").sum()


def read_again(calls: pl.DataFrame, usual: float) -> pl.DataFrame:
    """Return the calls that read more of their prompt than usual, and the seconds that this took.

    The prefill of a call took the longer, the more tokens it read: those of other calls in its batch, too.
    """
    missing = (usual * pl.col("expected_tokens") - pl.col("cached_tokens")).clip(lower_bound=0.0)
    read = pl.col("prompt_tokens") - pl.col("cached_tokens")
    rows = calls.with_columns(missing_tokens=missing).filter((_MISSING > 0) & (read > 0))
    return rows.with_columns(excess_sec=pl.col("prefill_sec") * (_MISSING / read).clip(upper_bound=1.0))


def lost_by(evidence: Evidence, late: pl.DataFrame) -> tuple[float, pl.DataFrame] | None:
    """Return what the step lost by late calls, and the time of calls that this explains.

    Args:
        evidence: The evidence.
        late: Engine calls with `excess_sec`.

    Returns:
        The seconds, and row, excess_sec of `evidence.calls`; None if the step lost too little.
    """
    late = late.drop_nulls("excess_sec")
    if late.is_empty():
        return None
    lost, calls = lost_in_calls(evidence, late)
    lost = evidence.worth(lost)
    return None if lost.is_empty() else (float(lost["lost_sec"].sum()), calls)


def lost_in_calls(evidence: Evidence, late: pl.DataFrame) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return what each step lost by late calls, and the time of calls that this explains.

    Args:
        evidence: The evidence.
        late: Engine calls with `excess_sec`.

    Returns:
        step, validate, lost_sec; and row, excess_sec of `evidence.calls`.
    """
    delays = late.select(*STEP_OF_WORKER, "request_id", "turn", "excess_sec")
    engine = evidence.calls.filter(kind="engine").drop("excess_sec", strict=False)
    calls = engine.join(delays, on=[*STEP_OF_WORKER, "request_id", "turn"], maintain_order="left")
    return evidence.lost_in_requests(late), calls


def missing_tokens(again: pl.DataFrame) -> int:
    """Return how many tokens were read again, of the calls that `read_again` returns."""
    return int(again["missing_tokens"].sum())
