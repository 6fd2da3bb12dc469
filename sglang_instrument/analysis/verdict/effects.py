"""Tell what all workers of a step share from what sets one worker apart, and a trend from an outlier.

A value is the logarithm of how many times the usual something took: 0 is usual, log 2 twice that. Each step has
one value for each worker. What most workers share is the step's; the rest is the worker's own. Each is compared
with the spread of its kind in the run.
"""

import math
from typing import Any, Final, NamedTuple

import polars as pl

from sglang_instrument.analysis.answers.ledger import STEP

SPREADS: Final = 6.0  # robust standard deviations above which a value is out of the ordinary
FEWEST_STEPS: Final = 4  # with fewer steps, the spread between steps cannot be estimated
_TIMES_OF_FEW: Final = 1.5  # times the next slowest step, where there are just three
FEWEST_OF_A_TREND: Final = 6
_CHANCE_OF_A_TREND: Final = 1e-3
_LEAST_TREND: Final = 1.15  # times as much at the end as at the begin
_MAD: Final = 1.4826  # a normal distribution's standard deviation, in median absolute deviations


class Limits(NamedTuple):
    """What counts as out of the ordinary: at least so many `times` the usual; `spread` is the least to assume."""

    times: float
    spread: float


class Trend(NamedTuple):
    """A growth from step to step: `per_step` is the slope of the logarithm, `times` the growth over the run."""

    per_step: float
    times: float
    chance: float


def shared_values(groups: pl.DataFrame, order: pl.DataFrame) -> pl.DataFrame:
    """Return one row per step, in the order of time: step, validate, and `shared`, which most workers reach.

    Args:
        groups: step, validate, worker, value.
        order: The steps in the order of time.
    """
    shared = groups.group_by(STEP).agg(shared=pl.col("value").quantile(0.5, "lower"))
    return order.select(STEP).join(shared, on=STEP, maintain_order="left")


def find_trend(shared: pl.DataFrame) -> Trend | None:
    """Return how training steps grow, if they do: Theil and Sen's slope, Mann and Kendall's test."""
    values = shared.filter(~pl.col("validate"))["shared"].to_list()
    if len(values) < FEWEST_OF_A_TREND:
        return None
    from scipy.stats import kendalltau, theilslopes

    steps = list(range(len(values)))
    slope = float(theilslopes(values, steps)[0])
    chance = float(kendalltau(steps, values)[1])
    times = math.exp(slope * (len(values) - 1))
    grows = times >= _LEAST_TREND and chance < _CHANCE_OF_A_TREND
    return Trend(slope, times, chance) if grows else None


def without_trend(shared: pl.DataFrame, trend: Trend | None) -> pl.DataFrame:
    """Return the steps with the growth taken away from `shared`; `growth` is what was taken away."""
    number = pl.int_range(pl.len()).over("validate")
    growth = pl.lit(0.0) if trend is None else pl.when("validate").then(0.0).otherwise(number * trend.per_step)
    shared = shared.with_columns(growth=growth)
    return shared.with_columns(shared=pl.col("shared") - pl.col("growth"))


def slow_steps(shared: pl.DataFrame, limits: Limits) -> pl.DataFrame:
    """Return the steps whose shared value is out of the ordinary, with their `excess`: the logarithm above."""
    found = [_slow_of(shared.filter(validate=validate), limits) for validate in (False, True)]
    return pl.concat(found)


def _slow_of(shared: pl.DataFrame, limits: Limits) -> pl.DataFrame:
    usual: Any = shared["shared"].median() or 0.0
    shared = shared.with_columns(excess=pl.col("shared") - usual)
    if len(shared) < FEWEST_STEPS:
        highest = shared.sort("excess", descending=True)
        if len(shared) < FEWEST_STEPS - 1:
            return highest.clear()
        apart = math.log(max(_TIMES_OF_FEW, limits.times))
        return highest.head(1).filter(pl.col("shared") - highest["shared"][1] > apart)
    spread = robust_spread(shared["excess"], limits.spread)
    return shared.filter(pl.col("excess") > max(SPREADS * spread, math.log(limits.times)))


def own_values(groups: pl.DataFrame) -> pl.DataFrame:
    """Return the groups with `own`: the value above what most workers of the step share; without lone workers."""
    workers = pl.len().over(STEP)
    shared = pl.col("value").quantile(0.5, "lower").over(STEP)
    middle = pl.col("value").median().over(STEP)
    groups = groups.with_columns(own=pl.col("value") - shared, off=pl.col("value") - middle, workers=workers)
    return groups.filter(pl.col("workers") > 1)


def slow_workers(groups: pl.DataFrame, limits: Limits) -> pl.DataFrame:
    """Return the groups whose own value is out of the ordinary; `own` is the logarithm above their peers'."""
    own = own_values(groups)
    if len(own) < FEWEST_STEPS:
        return own.clear()
    spread = robust_spread(own["off"], limits.spread)
    return own.filter(pl.col("own") > max(SPREADS * spread, math.log(limits.times)))


def robust_spread(offsets: pl.Series, least: float) -> float:
    """Return the standard deviation of offsets from the median, as the median absolute one tells, or `least`."""
    median: Any = offsets.abs().median()
    return max(least, _MAD * float(median or 0.0))
