"""Pick the calls of conversations whose server or cache is known, and measure what they lost by either."""

from collections.abc import Sequence
from typing import Final

import polars as pl

from sglang_instrument.analysis.ledger.intervals import sec_between
from sglang_instrument.analysis.ledger.ledger import STEP, STEP_OF_WORKER
from sglang_instrument.analysis.verdict.evidence.run_evidence import Evidence
from sglang_instrument.analysis.verdict.evidence.servers.prefills import (
    held_by_reading,
    timed_calls,
    waits_for_prefills,
)

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


def read_again(evidence: Evidence, calls: pl.DataFrame, usual: float) -> pl.DataFrame:
    """Return the calls that lost time because prompts were read that caches should have had.

    The prefill of a call takes the longer, the more tokens its batch reads; and the calls that a server runs
    wait while it reads. Where servers do not log that, only the prefills of these calls are known.

    Args:
        evidence: The evidence.
        calls: Later calls of a step.
        usual: The share of the expected tokens that caches usually have.

    Returns:
        Calls of the step with missing_tokens, and `excess_sec`.
    """
    missing = (usual * pl.col("expected_tokens") - pl.col("cached_tokens")).clip(lower_bound=0.0)
    read = pl.col("prompt_tokens") - pl.col("cached_tokens")
    rows = calls.with_columns(missing_tokens=missing).filter((_MISSING > 0) & (read > 0))
    timed = timed_calls(evidence)
    if rows.is_empty() or timed.is_empty():
        return rows.with_columns(excess_sec=pl.col("prefill_sec") * (_MISSING / read).clip(upper_bound=1.0))
    again = rows.select("rid", "missing_tokens")
    timed = in_step_of(timed, calls).join(again, on="rid", how="left", maintain_order="left")
    return held_by_reading(timed.with_columns(_MISSING.fill_null(0.0)), waits_for_prefills(evidence))


def lost_by(
    evidence: Evidence, late: pl.DataFrame, in_flow: bool = False
) -> tuple[float, pl.DataFrame] | None:
    """Return what the step lost by late calls, and the time of calls that this explains.

    Args:
        evidence: The evidence.
        late: Engine calls with `excess_sec`.
        in_flow: Whether a step that does not wait for its last request lost at least `lost_in_flow`.

    Returns:
        The seconds, and row, excess_sec of `evidence.calls`; None if the step lost too little.
    """
    late = late.drop_nulls("excess_sec")
    if late.is_empty():
        return None
    lost, calls = lost_in_calls(evidence, late)
    if in_flow:
        lost = at_least(lost, lost_in_flow(evidence, evidence.served, late))
    lost = evidence.worth(lost)
    return None if lost.is_empty() else (float(lost["lost_sec"].sum()), calls)


def lost_in_flow(
    evidence: Evidence, calls: pl.DataFrame, delays: pl.DataFrame, by: Sequence[str] = STEP
) -> pl.DataFrame:
    """Return what steps lost that do not wait for their last request.

    These are steps whose requests were aborted, steps that overlap, and all where requests flow through the
    workers. There no single request decides: a step takes as long as its calls together, over how many of
    them are in flight at once (Little's law).

    Args:
        evidence: The evidence.
        calls: Calls with `call_sec`.
        delays: Some of them with `excess_sec`.
        by: Whose delays are told apart, such as those of each worker: columns with those of a step.
    """
    windows = evidence.windows.with_columns(
        took_sec=sec_between("begin_us", "done_us"),
        overlaps=(pl.col("begin_us").shift(-1) < pl.col("done_us")).fill_null(value=False)
        | (pl.col("begin_us") < pl.col("done_us").shift(1)).fill_null(value=False),
    )
    aborted = evidence.digest.requests.filter(finish_reason="abort").select(STEP).unique()
    aborted = aborted.with_columns(aborts=pl.lit(value=True))
    flows = windows.join(aborted, on=STEP, how="left").filter(
        pl.lit(evidence.flows) | pl.col("overlaps") | pl.col("aborts").fill_null(value=False)
    )
    spent = calls.group_by(STEP).agg(spent_sec=pl.col("call_sec").sum())
    late = delays.group_by(by).agg(late_sec=pl.col("excess_sec").sum())
    joined = flows.join(spent, on=STEP).join(late, on=STEP).filter(pl.col("spent_sec") > 0)
    share = (pl.col("late_sec") / pl.col("spent_sec")).clip(upper_bound=1.0)
    return joined.select(*by, lost_sec=share * pl.col("took_sec"))


def at_least(lost: pl.DataFrame, other: pl.DataFrame, by: Sequence[str] = STEP) -> pl.DataFrame:
    """Return what each step, or each worker in it, lost, by the estimate that is larger."""
    both = pl.concat([lost.select(*by, "lost_sec"), other.select(*by, "lost_sec")])
    return both.group_by(by).agg(pl.col("lost_sec").max()).sort(by)


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
