"""Tabulate what each cap on responses would save, and what it would cut: the length curve of a run."""

import math
from collections.abc import Callable
from statistics import mean, stdev
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from sglang_instrument.analysis.advice.evidence.curves import (
    CapPoint,
    sample_curve,
    time_curve,
    token_curve,
    turn_curve,
)
from sglang_instrument.analysis.advice.evidence.grounds import Grounds
from sglang_instrument.analysis.advice.evidence.knee import knee_of
from sglang_instrument.analysis.advice.evidence.playback import Playback
from sglang_instrument.analysis.advice.intervals import saving_of
from sglang_instrument.analysis.ledger.loop_of_run import loop_of
from sglang_instrument.errors import InstrumentError

if TYPE_CHECKING:
    from sglang_instrument.analysis.run.opening import Run

#: What may be capped, and its curve. Of samples, the cap is the share of more samples that are begun.
CURVES: Final[dict[str, Callable[[Playback, pl.DataFrame], list[CapPoint]]]] = {
    "tokens": token_curve,
    "turns": turn_curve,
    "seconds": time_curve,
    "samples": sample_curve,
}
_Z95: Final = 1.959964
_MODEL_ERROR: Final = 0.4  # of `advise`'s caps
_SCHEMA: Final[dict[str, Any]] = {
    **dict.fromkeys(("cap", "saves_sec", "low", "high", "share"), pl.Float64),
    "ended_early": pl.Int64,
    **dict.fromkeys(("cut_share", "cut_reward", "cut_reward_at_least", "cut_reward_at_most"), pl.Float64),
    "mean_reward": pl.Float64,
    "is_knee": pl.Boolean,
}


def cap_table(run: "Run", kind: str = "tokens") -> pl.DataFrame:
    """Return one row per cap, the highest first.

    Args:
        run: The run.
        kind: What is capped, one of `CURVES`.

    Returns:
        cap; saves_sec, low, high: seconds that a step saves, with the 80 % interval; share: of the step;
        ended_early: responses that end early; cut_share: of all; cut_reward, cut_reward_at_least,
        cut_reward_at_most: their mean recorded reward with its 95 % interval; mean_reward: of all; is_knee.

    Raises:
        InstrumentError: There is no such curve, or no call has its tokens in the log.
    """
    if kind not in CURVES:
        raise InstrumentError(f"no curve of {kind!r}; the curves are: {', '.join(CURVES)}")
    grounds = Grounds(run, loop_of(run))
    playback = grounds.playback
    points = CURVES[kind](playback, grounds.requests)
    knee = knee_of(points) if kind != "samples" else None
    rewards = grounds.requests["reward"].drop_nulls()
    bounds = (rewards.min(), rewards.max())
    rows = [_row(point, playback, bounds, is_knee=point is knee) for point in points]
    return pl.DataFrame(rows, schema=_SCHEMA, orient="row")


def _row(point: CapPoint, playback: Playback, bounds: tuple[Any, Any], *, is_knee: bool) -> tuple[Any, ...]:
    saving = saving_of(point.per_step, _MODEL_ERROR)
    sec = point.saves_sec
    low, high = (None, None) if saving is None else (saving.low, saving.high)
    share = sec / playback.step_sec if playback.step_sec else 0.0
    cut = round(point.cut_share * playback.requests)
    rewards, reach = point.rewards, None
    reward = mean(rewards) if rewards else None
    if reward is not None and len(rewards) > 1:
        reach = _Z95 * stdev(rewards) / math.sqrt(len(rewards))
    least = most = None
    if reward is not None and reach is not None:  # a mean cannot lie outside of all rewards
        least, most = max(reward - reach, bounds[0]), min(reward + reach, bounds[1])
    return (
        point.cap,
        sec,
        low,
        high,
        share,
        cut,
        point.cut_share,
        reward,
        least,
        most,
        point.other_reward,
        is_knee,
    )
