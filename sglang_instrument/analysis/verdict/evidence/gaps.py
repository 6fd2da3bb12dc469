"""Measure the time between steps: the gaps, how they grow, and what is left without the growth."""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import polars as pl

from sglang_instrument.analysis.ledger.deciding_paths import Paths
from sglang_instrument.analysis.ledger.intervals import sec_between
from sglang_instrument.analysis.ledger.ledger import (
    NOT_RECORDED,
    STEP,
    between_steps,
    overlaps,
    trained_meanwhile,
    trainer_phases,
)
from sglang_instrument.analysis.verdict.evidence.effects import (
    Limits,
    Shift,
    Trend,
    find_shift,
    find_trend,
    floor_of,
    median_of_others,
    without_shift,
    without_trend,
)

GAP_LIMITS: Final = Limits(times=1.2, spread=0.03)
_WAITS_ALWAYS: Final = ("generate", "step")  # phases in which the trainer has nothing else to do
_WAITS: Final = ("generate", "step", "weights")  # phases in which the trainer may wait for the rollout
_OVERLAP: Final = 0.05  # of a step: a shorter overlap is none
_MOST: Final = 0.5  # of the steps


class Gaps(NamedTuple):
    """The gaps after the steps of a run.

    Attributes:
        rows: The steps with `sec`, the time until the next one.
        trend: How the gaps grow; None if they do not.
        shift: From which step on they were longer; None if they were not, or grow.
        flat: The rows with `shared`, the logarithm of `sec + floor_sec`, without trend and shift: as
            `effects.without_trend` returns them.
        floor_sec: `effects.floor_of`.
        overlaps: Whether rollout and training go on beside each other in most steps.
    """

    rows: pl.DataFrame
    trend: Trend | None
    shift: Shift | None
    flat: pl.DataFrame
    floor_sec: float
    overlaps: bool


def gaps_of(paths: Paths) -> Gaps:
    """Return the gaps between steps that are long enough to count."""
    sec = (pl.col("next_us") - pl.col("done_us")) / 1e6
    least_sec = _least(paths)
    rows = paths.windows.with_columns(sec=sec).filter(pl.col("sec") > least_sec)
    floor_sec = floor_of(paths.windows)
    shared = rows.with_columns(shared=(pl.col("sec") + floor_sec).log())
    trend = find_trend(shared)
    shift = None if trend is not None else find_shift(shared, GAP_LIMITS)
    flat = without_trend(shared, trend) if shift is None else without_shift(shared, shift)
    return Gaps(rows, trend, shift, flat, floor_sec, least_sec > 0)


class TrainerPhase(NamedTuple):
    """A phase of the trainer over the steps of a run.

    Attributes:
        event: Its event; NOT_RECORDED is the time of the trainer's steps that no record covers.
        rows: The steps that have it: step, validate (false), sec; usual_sec: the median of the others that
            have it; growth: as of `effects.without_shift`.
        shift: From which step on it took longer, if it did.
        floor_sec: `effects.floor_of`.
        step_sec: The median seconds from one step of the trainer to the next.
        last_step: The last step of the trainer.
    """

    event: str
    rows: pl.DataFrame
    shift: Shift | None
    floor_sec: float
    step_sec: float
    last_step: int

    @property
    def name(self) -> str:
        """What sentences call it."""
        return "time of the trainer without a record" if self.event == NOT_RECORDED else self.event


def trainer_phases_that_vary(paths: Paths, least_sec: float) -> Iterator[TrainerPhase]:
    """Yield the trainer's phases whose times differ by more than `least_sec`.

    Waiting for a rollout is none, nor is an update of the weights, which may wait for calls to end.
    """
    phases = trainer_phases(paths)
    begins = phases.group_by("of_step").agg(pl.col("from_us").min()).sort("of_step")
    last_step = int(begins["of_step"][-1]) if len(begins) else 0
    step_sec: Any = (begins["from_us"].diff() / 1e6).median() or 0.0
    at_work = phases.filter(~pl.col("phase").is_in(_WAITS))
    work = at_work.group_by("of_step", "event").agg(sec=sec_between("from_us", "to_us").sum())
    rows = pl.concat([work.select("of_step", "event", "sec"), _unrecorded(phases, begins)])
    floor_sec = floor_of(paths.windows)
    for (event,), part in rows.sort("event", "of_step").group_by("event", maintain_order=True):
        least: Any = part["sec"].min() if len(part) > 1 else 0.0
        most: Any = part["sec"].max()
        if most - least <= least_sec:
            continue
        shared = part.select(step="of_step", validate=pl.lit(value=False), sec="sec").with_columns(
            shared=(pl.col("sec") + floor_sec).log(), usual_sec=median_of_others("sec", ["validate"])
        )
        shift = find_shift(shared, GAP_LIMITS)
        shared = shared.with_columns(growth=pl.lit(0.0)) if shift is None else without_shift(shared, shift)
        yield TrainerPhase(str(event), shared, shift, floor_sec, float(step_sec), last_step)


def _unrecorded(phases: pl.DataFrame, begins: pl.DataFrame) -> pl.DataFrame:
    """Return the seconds from one step of the trainer to the next that no record covers."""
    covered = phases.group_by("of_step").agg(sec=sec_between("from_us", "to_us").sum())
    steps = begins.with_columns(whole_sec=pl.col("from_us").diff().shift(-1) / 1e6).drop_nulls("whole_sec")
    rest = (pl.col("whole_sec") - pl.col("sec")).clip(lower_bound=0.0)
    return steps.join(covered, on="of_step").select("of_step", event=pl.lit(NOT_RECORDED), sec=rest)


def phases_in_gaps(paths: Paths) -> pl.DataFrame:
    """Return what the trainer did between steps, and what that takes in the other steps that have it.

    Returns:
        step, validate, event; sec: between the steps; whole_sec: what its spans took that reach into the gap,
        with the time while the steps themselves went on; usual_sec: the median of what it took in all in the
        other steps whose records tell of it, 0 if none does. Where it may have waited for the rollout, the
        usual time is what it took: no longer work of the trainer's.
    """
    phases = trainer_phases(paths).with_columns(whole_sec=sec_between("from_us", "to_us"))
    phases = phases.with_row_index("number")
    of_steps = phases.group_by("of_step", "event").agg(pl.col("whole_sec").sum())
    of_steps = of_steps.with_columns(usual_sec=median_of_others("whole_sec", ["event"]))
    waits = pl.col("event").is_in(
        phases.filter(pl.col("phase").is_in(_WAITS_ALWAYS))["event"].unique().implode()
    )
    usual_sec = pl.when(waits).then("whole_sec").otherwise("usual_sec")
    of_steps = of_steps.select("of_step", "event", usual_sec=usual_sec)
    gaps = paths.windows.select(*STEP, from_us="done_us", to_us="next_us")
    pieces = overlaps(gaps.filter(pl.col("to_us") > pl.col("from_us")), phases)
    pieces = pieces.unique([*STEP, "number"]).join(of_steps, on=["of_step", "event"], how="left")
    by_own_step = pieces.group_by(*STEP, "event", "of_step").agg(
        pl.col("whole_sec").sum(), pl.col("usual_sec").max()
    )
    # A gap may hold a phase of several steps of the trainer.
    whole = by_own_step.group_by(*STEP, "event").agg(pl.col("whole_sec", "usual_sec").sum())
    inside = between_steps(paths).join(whole, on=[*STEP, "event"], how="left", maintain_order="left")
    unrecorded = median_of_others("sec", ["validate", "event"])
    usual = pl.when(pl.col("event") == NOT_RECORDED).then(unrecorded).otherwise("usual_sec")
    return inside.select(
        *STEP, "event", "sec", pl.coalesce("whole_sec", "sec"), usual_sec=usual.fill_null(0.0)
    )


def _least(paths: Paths) -> float:
    """Return the shortest gap that counts.

    Where rollout and training overlap in most steps, one waits for the other, and short gaps come and go by
    chance.
    """
    took = (pl.col("done_us") - pl.col("begin_us")) / 1e6
    trained = trained_meanwhile(paths).rename({"sec": "trained_sec"})
    steps = paths.windows.join(trained, on=STEP, how="left")
    both = pl.col("overlap_sec") + pl.col("trained_sec").fill_null(0.0)
    middle, share = steps.select(took.median(), overlap=(both > _OVERLAP * took).mean()).row(0)
    return float(middle) if share > _MOST else 0.0
