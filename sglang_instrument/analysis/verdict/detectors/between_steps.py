"""Find gaps between steps that were longer than usual, and what the trainer did in them."""

from typing import Final

import polars as pl

from sglang_instrument.analysis.ledger.ledger import NOT_RECORDED, STEP, between_steps
from sglang_instrument.analysis.verdict.evidence.detector import Findings, NamedCause, detector
from sglang_instrument.analysis.verdict.evidence.effects import Limits, excess_of, slow_steps
from sglang_instrument.analysis.verdict.evidence.finding import Finding, place_of, seconds, where
from sglang_instrument.analysis.verdict.evidence.run_evidence import Evidence

BETWEEN_STEPS: Final = NamedCause(
    "between-steps",
    "step",
    "until the next step began it took at least 1.2 times the usual. The trainer's phase that grew most is "
    "named, unless time without a record grew more",
    "the trainer decides here: its phases are in trainer_0.jsonl, if its table is on; `events LOGS{step}`",
)
_LIMITS: Final = Limits(times=1.2, spread=0.03)


@detector(BETWEEN_STEPS)
def find_gaps_between_steps(evidence: Evidence) -> Findings:
    """Yield a finding for each gap that was out of the ordinary, beside their growth."""
    gaps = evidence.gaps
    slow = excess_of(slow_steps(gaps.flat, _LIMITS), floor_sec=gaps.floor_sec)
    worth = evidence.worth(slow.rename({"excess_sec": "lost_sec"}))
    if worth.is_empty():
        return
    growth = _growth_of_phases(between_steps(evidence.paths), gaps.rows)
    for row in worth.iter_rows(named=True):
        event = _grown(growth.filter(step=row["step"], validate=row["validate"]))
        usual_sec = row["sec"] - row["lost_sec"]
        sentence = (
            f"after {where(row)}, {seconds(row['sec'])} passed until the next began, usually "
            f"{seconds(usual_sec)}; "
            f"{f'most of it in {event}' if event else 'the trainer wrote no record of it'}; "
            f"{seconds(row['lost_sec'])} lost"
        )
        yield Finding(
            cause=BETWEEN_STEPS.name,
            scope="step",
            lost_sec=row["lost_sec"],
            sentence=sentence,
            **place_of(row),
            event=event,
            evidence={"sec": row["sec"], "usual_sec": usual_sec},
        )


def _growth_of_phases(phases: pl.DataFrame, gaps: pl.DataFrame) -> pl.DataFrame:
    """Return by how many seconds each of the trainer's phases was longer than in the median gap."""
    every = gaps.select(STEP).join(phases.select("event").unique(), how="cross")
    every = every.join(phases, on=[*STEP, "event"], how="left").with_columns(pl.col("sec").fill_null(0.0))
    usual = pl.col("sec").median().over("validate", "event")
    return every.select(*STEP, "event", grown_sec=pl.col("sec") - usual)


def _grown(phases: pl.DataFrame) -> str | None:
    """Return the phase that grew most; None if time without a record grew more."""
    event = str(phases.sort("grown_sec", "event")["event"][-1])
    return None if event == NOT_RECORDED else event
