"""Find gaps between steps that were longer than usual, and what the trainer did in them."""

import math
from typing import Final

import polars as pl

from sglang_instrument.analysis.answers.weights.served import CALLS
from sglang_instrument.analysis.answers.weights.updates import last_server_longer_sec, updates_of
from sglang_instrument.analysis.ledger.ledger import NOT_RECORDED, STEP
from sglang_instrument.analysis.verdict.evidence.detector import Findings, NamedCause, detector
from sglang_instrument.analysis.verdict.evidence.effects import (
    FEWEST_STEPS,
    SPREADS,
    robust_spread,
)
from sglang_instrument.analysis.verdict.evidence.finding import Finding, place_of, seconds, where
from sglang_instrument.analysis.verdict.evidence.gaps import GAP_LIMITS, Gaps, phases_in_gaps
from sglang_instrument.analysis.verdict.evidence.run_evidence import Evidence

BETWEEN_STEPS: Final = NamedCause(
    "between-steps",
    "step",
    "until the next step began it took at least 1.2 times the usual, because a phase of the trainer took "
    "longer than in the other steps that have it, or time without a record did. What grew most is named",
    "the trainer decides here: its phases are in trainer_0.jsonl, if its table is on; `events LOGS{step}`",
)

_UPDATE: Final = "weights_update"


@detector(BETWEEN_STEPS)
def find_gaps_between_steps(evidence: Evidence) -> Findings:
    """Yield a finding for each gap that was out of the ordinary, beside their growth.

    The physical fact: the trainer's work itself took longer. A phase that comes every few steps, as a
    checkpoint, is compared with the other gaps that have it. Where rollout and training overlap, a gap has
    the more of a phase the sooner the rollout is done, so a phase counts as a whole.
    """
    gaps = evidence.gaps
    phases = phases_in_gaps(evidence.paths).join(gaps.rows.select(STEP), on=STEP, how="semi")
    growth = phases.with_columns(
        grown_sec=pl.min_horizontal("sec", pl.col("whole_sec") - pl.col("usual_sec"))
    )
    slow = _slow_gaps(gaps, _without_slow_updates(evidence, growth))
    for row in evidence.worth(slow).iter_rows(named=True):
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


def _without_slow_updates(evidence: Evidence, growth: pl.DataFrame) -> pl.DataFrame:
    """Return the phases without updates that one server made long: `slow-update` names it."""
    if evidence.run is None or growth.filter(event=_UPDATE).is_empty():
        return growth
    updates = updates_of(evidence.weight_spans, pl.DataFrame(schema=CALLS))
    late = [row["step"] for row in updates if last_server_longer_sec(row) is not None]
    # Where rollout and training overlap, the gap after a step has the update of the trainer's next step.
    near = pl.col("step").is_in(late) | (pl.col("step") + 1).is_in(late)
    return growth.filter(~((pl.col("event") == _UPDATE) & near))


def _slow_gaps(gaps: Gaps, growth: pl.DataFrame) -> pl.DataFrame:
    """Return the gaps that were long by more than the usual growth of their phases, with `lost_sec`."""
    # Rounded to microseconds, as clocks are: so the order in which seconds are added changes nothing.
    grown = growth.group_by(STEP).agg(lost_sec=pl.col("grown_sec").clip(lower_bound=0.0).sum())
    rows = gaps.flat.join(grown, on=STEP, how="left", maintain_order="left")
    # What grows over the run, or is longer from a step on, is told by `trend` and `shift`.
    lasting_sec = (pl.col("sec") + gaps.floor_sec) * (1 - (-pl.col("growth")).exp())
    lost_sec = (pl.col("lost_sec").fill_null(0.0) - lasting_sec).clip(lower_bound=0.0).round(6)
    rows = rows.with_columns(lost_sec=lost_sec)
    usual = pl.col("sec") - pl.col("lost_sec") + gaps.floor_sec
    rows = rows.with_columns(times=((pl.col("sec") + gaps.floor_sec) / usual).log())
    if len(rows) < FEWEST_STEPS - 1:
        return rows.clear()
    spread = robust_spread(rows["times"] - (rows["times"].median() or 0.0), GAP_LIMITS.spread)
    return rows.filter(pl.col("times") > max(SPREADS * spread, math.log(GAP_LIMITS.times)))


def _grown(phases: pl.DataFrame) -> str | None:
    """Return the phase that grew most; None if time without a record grew more."""
    event = str(phases.sort("grown_sec", "event")["event"][-1])
    return None if event == NOT_RECORDED else event
