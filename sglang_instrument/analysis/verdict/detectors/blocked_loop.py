"""Find event loops that code blocked for a large part of a step, and name the code."""

from collections.abc import Iterator

import polars as pl

from sglang_instrument.analysis.answers.gaps import loop_blocks
from sglang_instrument.analysis.ledger.ledger import STEP_OF_WORKER
from sglang_instrument.analysis.verdict.evidence.finding import Finding, place_of, seconds, where
from sglang_instrument.analysis.verdict.evidence.run_evidence import Evidence


def find_blocked_loops(evidence: Evidence) -> Iterator[Finding]:
    """Yield a finding for each worker whose event loop was blocked, with the code that blocked it longest."""
    steps = evidence.digest.steps
    blocks = loop_blocks(evidence.files).join(
        steps, on=["role", *STEP_OF_WORKER], how="semi", maintain_order="left"
    )
    for _, rows in blocks.group_by(STEP_OF_WORKER, maintain_order=True):
        blocked = rows.group_by(STEP_OF_WORKER).agg(excess_sec=pl.col("blocked_sec").sum())
        lost = evidence.worth(evidence.lost_by_workers(blocked))
        if lost.is_empty():
            continue
        _explain(evidence, rows)
        longest, blocked_sec = rows.row(0, named=True), float(blocked["excess_sec"][0])
        by = longest["culprit"] or longest["in_span"]
        sentence = f"{where(longest)} had its event loop blocked for {seconds(blocked_sec)}"
        sentence += f" by {by}" if by else ""
        numbers = {"blocked_sec": blocked_sec, "times": len(rows), "in_span": longest["in_span"], "culprit": by}
        lost_sec, event = float(lost["lost_sec"][0]), longest["in_span"]
        yield Finding(
            *("blocked-loop", "worker", lost_sec, sentence), **place_of(longest), event=event, evidence=numbers
        )


def _explain(evidence: Evidence, blocks: pl.DataFrame) -> None:
    """Take the time in which the loop was blocked away from the worker's calls at that time."""
    begun = pl.col("at_us") - (pl.col("blocked_sec") * 1e6).cast(pl.Int64)
    blocked = blocks.select(*STEP_OF_WORKER, from_us=begun, to_us="at_us")
    calls = evidence.calls.with_row_index("row").join(blocked, on=STEP_OF_WORKER)
    inside = pl.min_horizontal("end_us", "to_us") - pl.max_horizontal("start_us", "from_us")
    calls = calls.with_columns(excess_sec=inside.clip(lower_bound=0) / 1e6)
    sums = calls.group_by("row").agg(pl.col("excess_sec").sum(), pl.col("sec").first())
    evidence.explain(sums.with_columns(excess_sec=pl.min_horizontal("excess_sec", "sec")))
