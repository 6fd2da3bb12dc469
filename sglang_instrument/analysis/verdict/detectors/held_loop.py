"""Find event loops that code held for a large part of a step, and name the code."""

from collections.abc import Iterator

import polars as pl

from sglang_instrument.analysis.answers.gaps import loop_blocks
from sglang_instrument.analysis.answers.ledger import STEP_OF_WORKER
from sglang_instrument.analysis.verdict.evidence import Evidence
from sglang_instrument.analysis.verdict.finding import Finding, seconds, step_name


def find_held_loops(evidence: Evidence) -> Iterator[Finding]:
    """Yield a finding for each worker whose event loop was held, with the code that held it longest."""
    blocks = loop_blocks(evidence.files).join(
        evidence.digest.steps, on=["role", *STEP_OF_WORKER], how="semi", maintain_order="left"
    )
    held = blocks.group_by(STEP_OF_WORKER, maintain_order=True).agg(
        excess_sec=pl.col("held_sec").sum(),
        times=pl.len(),
        culprit=pl.col("culprit").first(),
        in_span=pl.col("in_span").first(),
    )
    for row in held.iter_rows(named=True):
        mine = held.filter(*(pl.col(name) == row[name] for name in STEP_OF_WORKER))
        lost = evidence.lost_by_workers(mine)
        if evidence.worth(lost.with_columns(lost_sec=pl.lit(row["excess_sec"]))).is_empty():
            continue
        _explain(evidence, blocks.filter(*(pl.col(name) == row[name] for name in STEP_OF_WORKER)))
        by = row["culprit"] or row["in_span"]
        sentence = (
            f"{step_name(row['step'], row['validate'])}: worker {row['worker']} had its event loop held for "
            f"{seconds(row['excess_sec'])}" + (f" by {by}" if by else "")
        )
        place = {name: row[name] for name in STEP_OF_WORKER}
        numbers = {name: row[name] for name in ("times", "culprit", "in_span")}
        numbers["held_sec"] = row["excess_sec"]
        lost_sec = float(lost["lost_sec"][0])
        yield Finding(
            "held-loop", "worker", lost_sec, sentence, **place, event=row["in_span"], evidence=numbers
        )


def _explain(evidence: Evidence, blocks: pl.DataFrame) -> None:
    """Take the time in which the loop was held away from the calls of the worker at that time."""
    begun = pl.col("at_us") - (pl.col("held_sec") * 1e6).cast(pl.Int64)
    held = blocks.select(*STEP_OF_WORKER, from_us=begun, to_us="at_us")
    calls = evidence.calls.with_row_index("row").join(held, on=STEP_OF_WORKER)
    inside = pl.min_horizontal("end_us", "to_us") - pl.max_horizontal("start_us", "from_us")
    calls = calls.with_columns(excess_sec=inside.clip(lower_bound=0) / 1e6).filter(pl.col("excess_sec") > 0)
    calls = calls.group_by("row").agg(pl.col("excess_sec").sum(), pl.col("sec").first())
    evidence.explain(calls["row"], calls.select(pl.min_horizontal("excess_sec", "sec")).to_series())
