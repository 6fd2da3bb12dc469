"""Compare settings that a twin measured, step by step, and mark the best one if it is better than noise."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from statistics import fmean
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from sglang_instrument.analysis.ledger.loop_of_run import loop_of
from sglang_instrument.twin.trials.figures import StepFigures, figures_of
from sglang_instrument.twin.trials.settings import RECORDED
from sglang_instrument.twin.trials.validity import interval_of

if TYPE_CHECKING:
    from sglang_instrument.analysis.run.opening import Run

#: Of a setting, the figures of each pass and step.
_Played = Mapping[tuple[int, int], StepFigures]
_OVERLAPS: Final = ("one step off", "asynchronous")
_PROMISED: Final = 0.8  # as the intervals of `advise`


class MeasuredSaving(NamedTuple):
    """Seconds that a setting saves a step, the 80 % interval of the mean, and how many pairs tell it."""

    sec: float
    low: float
    high: float
    pairs: int


def setting_rows(measured: Mapping[str, _Played], record: Run) -> list[dict[str, Any]]:
    """Return a row for each setting, as the table `twin_settings` declares: first that of the record."""
    base = measured[RECORDED]
    around_sec, recorded_sec = _around(record)
    rows = []
    for name, played in measured.items():
        ratios = _ratios(played, base)
        ratio, low, high = interval_of(ratios) if ratios else (1.0, None, None)
        known = list(played.values())
        is_open = len(ratios) < 2 or name == RECORDED
        rows.append(
            {
                "setting": name,
                "rollout_sec": fmean(figures.rollout_sec for figures in known),
                "step_sec": None if around_sec is None else around_sec + recorded_sec * ratio,
                "ratio": ratio,
                "low": None if is_open else low,
                "high": None if is_open else high,
                "pairs": len(ratios),
                "p99_sec": fmean(figures.p99_sec for figures in known),
                "queue_sec": _mean(figures.queue_sec for figures in known),
                "cached_share": _mean(figures.cached_share for figures in known),
                "retractions": _mean(figures.retractions for figures in known),
                "is_best": is_best(name, measured),
            }
        )
    return rows


def savings(measured: Mapping[str, _Played], record: Run) -> dict[str, MeasuredSaving]:
    """Return what each setting saves a step of the record, compared step by step.

    Returns:
        By setting; none of one with fewer than two pairs of steps, or where training and rollout overlap.
    """
    around_sec, recorded_sec = _around(record)
    saved: dict[str, MeasuredSaving] = {}
    if around_sec is None:
        return saved
    for name, played in measured.items():
        ratios = _ratios(played, measured[RECORDED])
        if name != RECORDED and len(ratios) > 1:
            sec, high, low = (recorded_sec * (1 - ratio) for ratio in interval_of(ratios, _PROMISED))
            saved[name] = MeasuredSaving(sec, low, high, len(ratios))
    return saved


def is_best(name: str, measured: Mapping[str, _Played]) -> bool:
    """Return whether a setting is faster than each other one by more than noise."""
    if len(measured) < 2:
        return False
    for other, played in measured.items():
        if other != name:
            ratios = _ratios(measured[name], played)
            if len(ratios) < 2 or interval_of(ratios)[2] >= 1:
                return False
    return True


def _ratios(played: _Played, base: _Played) -> list[float]:
    """Return the ratios of rollouts of the same pass and step."""
    return [figures.rollout_sec / base[key].rollout_sec for key, figures in played.items() if key in base]


def _mean(values: Collection[float | int | None] | Any) -> float | None:
    known = [value for value in values if value is not None]
    return fmean(known) if known else None


def _around(record: Run) -> tuple[float | None, float]:
    """Return the mean seconds of a recorded step outside its rollout, and of its rollout.

    The first is None where training and rollout overlap: then a faster rollout may save nothing.
    """
    recorded_sec = fmean(figures.rollout_sec for figures in figures_of(record).values())
    loop = loop_of(record)
    whole_sec = loop.mean()["to_next_step_sec"]
    if whole_sec is None or str(loop.shape()) in _OVERLAPS:
        return None, recorded_sec
    return max(0.0, whole_sec - recorded_sec), recorded_sec
