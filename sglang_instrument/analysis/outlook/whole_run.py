"""Forecast when a training ends, in hours and GPU hours, and what a cap on responses would change of that."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import polars as pl

from sglang_instrument.analysis.advice.evidence.curves import token_curve
from sglang_instrument.analysis.advice.evidence.grounds import Grounds
from sglang_instrument.analysis.answers.routing.gauges import gpu_table
from sglang_instrument.analysis.changes.statistics import first_is_cold
from sglang_instrument.analysis.ledger.loop import Loop
from sglang_instrument.analysis.ledger.loop_of_run import loop_of
from sglang_instrument.analysis.outlook.trend import FEWEST, FutureSteps, future_of
from sglang_instrument.analysis.settings.main_settings import first_number, total_steps
from sglang_instrument.analysis.settings.recorded import Setting, settings_of_run
from sglang_instrument.errors import InstrumentError, LogError

if TYPE_CHECKING:
    from sglang_instrument.analysis.run.opening import Run

_LOW: Final = 0.1  # quantiles of the 80 % interval
_HIGH: Final = 0.9
_WIDEST: Final = 100.0  # times the low end of the interval: beyond, nothing is known
_MILESTONES: Final = 10
_MOST_CUT: Final = 0.2  # of the responses: caps that cut more are not listed
_GPUS: Final = (
    ("n_gpus_per_node", "nnodes"),
    ("num_gpus_per_node", "num_nodes"),
    ("actor_num_gpus_per_node", "actor_num_nodes"),
)
_NO_GPUS: Final = "how many GPUs the training has: the trainer's settings record it, or --gpus N says it"
_ASSUMED: Final = (
    "Step times go on as they have: their level, its growth, and their scatter are learnt from the steps so "
    "far. No restart, failure or change of a setting is foreseen.",
    "A cap cuts the responses of steps to come as it would have cut those so far, and saves the same share.",
)


@dataclass(frozen=True)
class Forecasted:
    """When a training ends.

    Attributes:
        last_step: The last step that is complete.
        steps: How many steps the training has.
        steps_left: How many are to come.
        from_us: The end of the last complete step, in Unix microseconds.
        left_sec, low_sec, high_sec: Seconds from there to the end: the median, and the 80 % interval.
        gpus: How many GPUs the training has; None if not known.
        growth: By which share step times and response lengths grew over the steps so far: `step_sec`,
            `response_tokens`; None where not known.
        milestones: Rows of the table of milestones.
        caps: Rows of the table of caps.
        missing: What the log does not tell, and what would record it.
        assumptions: What is taken for granted.
    """

    last_step: int
    steps: int
    steps_left: int
    from_us: int
    left_sec: float
    low_sec: float
    high_sec: float
    gpus: int | None
    growth: dict[str, float | None]
    milestones: list[dict[str, Any]]
    caps: list[dict[str, Any]]
    missing: list[str] = field(default_factory=list)
    assumptions: tuple[str, ...] = _ASSUMED

    @property
    def sentence(self) -> str:
        """The forecast in words."""
        left, low, high = (sec / 3600 for sec in (self.left_sec, self.low_sec, self.high_sec))
        ends = datetime.fromtimestamp(self.from_us / 1e6 + self.left_sec, timezone.utc)
        hours = self.gpu_hours()
        of_gpus = "" if hours is None else f", {hours:,.3g} GPU hours"
        return (
            f"{self.steps_left:,} of {self.steps:,} steps are to come: they end in {left:.3g} h "
            f"(80 %: {low:.3g} .. {high:.3g} h){of_gpus}, at {ends:%Y-%m-%d %H:%M} UTC"
        )

    def gpu_hours(self) -> float | None:
        """Return the GPU hours to the end, the median; None if it is not known how many GPUs there are."""
        return None if self.gpus is None else self.gpus * self.left_sec / 3600


def forecast_run(run: "Run", steps: int | None = None, gpus: int | None = None) -> Forecasted:
    """Return when a training ends.

    Args:
        run: The run.
        steps: How many steps it has, by the trainer's own numbers; by default as its settings say.
        gpus: How many GPUs it has; by default as its settings or its gauges say.

    Raises:
        InstrumentError: It is not known how many steps it has, or none is left.
        LogError: Too few steps are complete, or they tell nothing of so many more.
    """
    settings = settings_of_run(run)
    loop = loop_of(run)
    table = _complete(run, loop)
    if len(table) < FEWEST:
        raise LogError(f"{run.name}: {len(table)} complete steps are too few: a forecast needs {FEWEST}")
    wanted = total_steps(settings) if steps is None else steps
    if wanted is None:
        raise InstrumentError(f"{run.name}: no setting says how many steps it has: use --steps N")
    last = max(table["step"].to_list())
    first = min(loop.lanes.windows["step"].to_list())
    left = wanted - last if first > 0 else wanted - last - 1  # steps count from 1, or from 0
    if left <= 0:
        raise InstrumentError(f"{run.name}: step {last} of {wanted} is complete: nothing is left to forecast")
    seconds: list[float] = table["sec"].to_list()
    extras = [table[name].fill_null(0.0).to_list() for name in ("validation_sec", "checkpoint_sec")]
    paths = future_of(seconds, left, extras)
    from_us = max(loop.lanes.windows.filter(step=last)["to_us"].to_list())
    known_gpus = gpus if gpus is not None else _gpus(run, settings)
    missing = [] if known_gpus else [_NO_GPUS]
    low, middle, high = (float(paths.ends(share)[-1]) for share in (_LOW, 0.5, _HIGH))
    if high > _WIDEST * low:
        raise LogError(
            f"{run.name}: {len(table)} complete steps differ too much to tell when {left:,} more end: ask "
            "again when more are complete, or for fewer (--steps N)"
        )
    return Forecasted(
        last,
        wanted,
        left,
        from_us,
        middle,
        low,
        high,
        known_gpus,
        {"step_sec": _growth(seconds), "response_tokens": _growth(_tokens(run, table["step"].to_list()))},
        _milestones(paths, last, left, from_us),
        _caps(run, loop, middle),
        missing,
    )


def _complete(run: "Run", loop: Loop) -> pl.DataFrame:
    """Return the complete steps: step; sec, without validation_sec and checkpoint_sec, which it has, too.

    A step is complete when the next has begun, or when its own end is logged. A cold first step is left out.
    """
    part = pl.col("trainer") == "checkpoint"
    saved = loop.moments.group_by("step", "validate").agg(checkpoint_sec=pl.col("sec").filter(part).sum())
    steps = loop.steps().join(saved, on=["step", "validate"], how="left", maintain_order="left")
    unended = run.digest.steps.filter(pl.col("unended"), ~pl.col("validate"))["step"].unique().to_list()
    steps = steps.filter(~pl.col("validate"), ~pl.col("step").is_in(unended))
    rest = pl.col("to_next_step_sec") - pl.col("validation_sec").fill_null(0.0) - pl.col("checkpoint_sec")
    steps = steps.select("step", "validation_sec", "checkpoint_sec", sec=rest).filter(pl.col("sec") > 0)
    cold = len(steps) > FEWEST and first_is_cold(steps["sec"].to_list())
    return steps.slice(1) if cold else steps


def _gpus(run: "Run", settings: Sequence[Setting]) -> int | None:
    """Return how many GPUs a run has: nodes times GPUs of each, else those whose gauges were read."""
    for of_node, nodes in _GPUS:
        each, count = first_number(settings, (of_node,)), first_number(settings, (nodes,))
        if each and count:
            return each * count
    gauges = gpu_table(run)
    return gauges.select("host", "gpu").n_unique() if len(gauges) else None


def _tokens(run: "Run", steps: Sequence[int]) -> list[float]:
    """Return the mean response tokens of each step that has some."""
    requests = run.digest.of_workers().requests.filter(~pl.col("validate"), pl.col("step").is_in(list(steps)))
    means = requests.drop_nulls("response_tokens").group_by("step").agg(pl.col("response_tokens").mean())
    tokens: list[float] = means.sort("step")["response_tokens"].to_list()
    return tokens


def _growth(values: Sequence[float]) -> float | None:
    """Return by which share values grow from the first to the last: by a line through their logarithms."""
    known = [value for value in values if value > 0]
    if len(known) < FEWEST:
        return None
    slope = float(np.polyfit(np.arange(len(known)), np.log(known), 1)[0])
    return math.exp(slope * (len(known) - 1)) - 1


def _milestones(paths: FutureSteps, last: int, left: int, from_us: int) -> list[dict[str, Any]]:
    quantiles = [paths.ends(share) for share in (0.5, _LOW, _HIGH)]
    places = sorted({max(1, round(left * number / _MILESTONES)) for number in range(1, _MILESTONES + 1)})
    means = np.median(paths.sec, axis=0)
    return [
        {
            "step": last + place,
            "in_sec": float(quantiles[0][place - 1]),
            "low_sec": float(quantiles[1][place - 1]),
            "high_sec": float(quantiles[2][place - 1]),
            "at_us": from_us + round(float(quantiles[0][place - 1]) * 1e6),
            "step_sec": float(means[max(0, place - 10) : place].mean()),
        }
        for place in places
    ]


def _caps(run: "Run", loop: Loop, left_sec: float) -> list[dict[str, Any]]:
    """Return what caps on responses from now on would save; none where replays are not possible."""
    try:
        grounds = Grounds(run, loop)
        points = token_curve(grounds.playback, grounds.requests)
        step_sec = grounds.playback.step_sec
    except InstrumentError:
        return []
    return [
        {
            "cap": point.cap,
            "cut_share": point.cut_share,
            "left_sec": left_sec * (1 - point.saves_sec / step_sec),
            "saves_sec": left_sec * point.saves_sec / step_sec,
        }
        for point in points
        if step_sec > 0 and 0 < point.cut_share <= _MOST_CUT
    ]
