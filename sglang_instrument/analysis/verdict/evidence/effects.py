"""Tell what all workers of a step share from what sets one worker apart, and a trend from an outlier.

A value is the logarithm of how many times the usual something took: 0 is usual, log 2 twice that. Each step
has one value for each worker. What most workers share is the step's; the rest is the worker's own. Each is
compared with the spread of its kind in the run.
"""

import math
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import polars as pl

from sglang_instrument.analysis.ledger.ledger import STEP
from sglang_instrument.analysis.verdict.evidence.chance import chance_of_one_more
from sglang_instrument.analysis.verdict.evidence.series.cuts import cuts_with_least_scatter
from sglang_instrument.analysis.verdict.evidence.series.slopes import median_slope, reaches

SPREADS: Final = 6.0  # robust standard deviations above which a value is out of the ordinary
FEWEST_STEPS: Final = 4  # with fewer steps, the spread between steps cannot be estimated
_TIMES_OF_FEW: Final = 1.5  # times the next slowest step, where there are just three
_TIMES_ALWAYS: Final = 1.5  # times its peers, of a worker that is always slow
_MOST_STEPS: Final = 0.75  # of its steps
_FEWEST_OF_A_TREND: Final = 6
_FEWEST_OF_A_SIDE: Final = 2  # steps before and after a shift
_CHANCE_OF_A_TREND: Final = 1e-3
CHANCE_OF_A_STEP: Final = 0.01  # that the others draw any step that far off
_LEAST_TREND: Final = 1.15  # times as much at the end as at the begin
_LEAST_SEC: Final = 0.1
_OF_STEP: Final = 0.02
_MAD: Final = 1.4826  # a normal distribution's standard deviation, in median absolute deviations


class Limits(NamedTuple):
    """What is out of the ordinary: at least so many `times` the usual; `spread` is the least to assume."""

    times: float
    spread: float


class Trend(NamedTuple):
    """A growth: `per_step` is the slope of the logarithm, `times` the growth over the run."""

    per_step: float
    times: float
    chance: float


class Shift(NamedTuple):
    """A change to more that lasts: from which step on, and how many times as much as before.

    Attributes:
        step: The first step that has it.
        log: The logarithm of `times`.
        steps: How many training steps have it.
    """

    step: int
    log: float
    steps: int

    @property
    def times(self) -> float:
        """How many times as much as before it is."""
        return math.exp(self.log)


def shared_values(groups: pl.DataFrame, order: pl.DataFrame) -> pl.DataFrame:
    """Return one row per step, in the order of time.

    Columns: step, validate; shared: the value that most workers reach; having: how many workers have one.

    Args:
        groups: step, validate, and a `value` for each worker.
        order: The steps in the order of time.
    """
    shared = groups.group_by(STEP).agg(shared=pl.col("value").quantile(0.5, "lower"), having=pl.len())
    return order.select(STEP).join(shared, on=STEP, maintain_order="left")


class Effects(NamedTuple):
    """What a kind of work did over the steps of a run.

    Attributes:
        trend: How it grew; None if it did not.
        shift: From which step on it was more; None if it was not, or grew.
        flat: The steps without either, as `without_trend` and `without_shift` return them.
        slow: The steps that are out of the ordinary then, as `slow_steps` returns them.
    """

    trend: Trend | None
    shift: Shift | None
    flat: pl.DataFrame
    slow: pl.DataFrame


def step_effects(groups: pl.DataFrame, order: pl.DataFrame, limits: Limits) -> Effects:
    """Return what most workers of a step share: a trend over the steps, and steps that are slow beside it.

    Args:
        groups: step, validate, and a `value` for each worker.
        order: The steps in the order of time.
        limits: What is out of the ordinary.
    """
    shared = shared_values(groups, order.join(groups, on=STEP, how="semi"))
    trend = find_trend(shared)
    shift = None if trend is not None else find_shift(shared, limits)
    flat = without_trend(shared, trend) if shift is None else without_shift(shared, shift)
    return Effects(trend, shift, flat, slow_steps(flat, limits))


def find_trend(shared: pl.DataFrame) -> Trend | None:
    """Return how training steps grow, if they do: Theil and Sen's slope, Mann and Kendall's test."""
    values = shared.filter(~pl.col("validate"))["shared"].to_numpy()
    if len(values) < _FEWEST_OF_A_TREND:
        return None
    if not reaches(values, (1 - 1e-9) * math.log(_LEAST_TREND) / (len(values) - 1)):  # as in most runs
        return None
    slope = median_slope(values)
    times = math.exp(slope * (len(values) - 1))
    if times < _LEAST_TREND:
        return None
    from scipy.stats import kendalltau  # takes half a second to import: only where something grows

    chance = float(kendalltau(range(len(values)), values)[1])
    return Trend(slope, times, chance) if chance < _CHANCE_OF_A_TREND else None


def without_trend(shared: pl.DataFrame, trend: Trend | None) -> pl.DataFrame:
    """Return the steps with the trend taken away from `shared`; `growth` is what was taken away."""
    number = pl.int_range(pl.len()).over("validate")
    if trend is None:
        return shared.with_columns(growth=pl.lit(0.0))
    shared = shared.with_columns(growth=pl.when("validate").then(0.0).otherwise(number * trend.per_step))
    return shared.with_columns(shared=pl.col("shared") - pl.col("growth"))


def find_shift(shared: pl.DataFrame, limits: Limits) -> Shift | None:
    """Return from which training step on values are higher, if all later ones are higher than all before.

    Among the ways to cut the run in two, each with at least two steps, it is the one that leaves least
    scatter about the medians of both. Without it, a change early in a run would pass for the usual.
    """
    training = shared.filter(~pl.col("validate")).drop_nulls("shared")
    values, best = training["shared"], None
    for first in cuts_with_least_scatter(values.to_numpy(), _FEWEST_OF_A_SIDE):
        before, after = values.head(first), values.tail(-first)
        low, high = float(before.median()), float(after.median())  # type: ignore[arg-type]  # of floats
        off = pl.concat([before - low, after - high])
        if best is None or float(off.abs().sum()) < best[0]:
            best = (float(off.abs().sum()), first, high - low, off)
    if best is None:
        return None
    _, first, log, off = best
    is_apart = float(values.tail(-first).min()) > float(values.head(first).max())  # type: ignore[arg-type]
    # Both medians were fitted to these values: that costs two degrees of freedom.
    deviation = math.sqrt(float((off**2).sum()) / max(1, len(values) - 2))
    least = max(SPREADS * max(deviation, robust_spread(off, limits.spread)), math.log(limits.times))
    step = int(training["step"][first])
    return Shift(step, log, len(values) - first) if is_apart and log > least else None


def without_shift(shared: pl.DataFrame, shift: Shift) -> pl.DataFrame:
    """Return the steps with the shift taken away from `shared`; `growth` is what was taken away."""
    first = shared["step"].to_list().index(shift.step)
    has_it = ~pl.col("validate") & (pl.int_range(pl.len()) >= first)
    shared = shared.with_columns(growth=pl.when(has_it).then(shift.log).otherwise(0.0))
    return shared.with_columns(shared=pl.col("shared") - pl.col("growth"))


def slow_steps(shared: pl.DataFrame, limits: Limits) -> pl.DataFrame:
    """Return the steps that are out of the ordinary, with `excess`, the logarithm above the usual."""
    kinds = shared["validate"].unique().sort()
    if len(kinds) < 2:  # as in most runs
        return _slow_of(shared, limits)
    return pl.concat([_slow_of(shared.filter(validate=kind), limits) for kind in kinds])


def _slow_of(shared: pl.DataFrame, limits: Limits) -> pl.DataFrame:
    if len(shared) < FEWEST_STEPS - 1:
        return shared.clear().with_columns(excess=pl.lit(0.0))
    usual: Any = shared["shared"].median() or 0.0
    excess = shared["shared"] - usual
    if len(shared) >= FEWEST_STEPS:
        least = max(SPREADS * robust_spread(excess, limits.spread), math.log(limits.times))
        slow = shared.with_columns(excess=excess).filter(excess > least)
        return slow if slow.is_empty() else _beyond_the_others(slow, excess.filter(excess <= least), limits)
    shared = shared.with_columns(excess=excess)
    highest = shared.sort("excess", descending=True)
    apart = math.log(max(_TIMES_OF_FEW, limits.times))
    return highest.head(1).filter(pl.col("shared") - highest["shared"][1] > apart)


def _beyond_the_others(slow: pl.DataFrame, others: pl.Series, limits: Limits) -> pl.DataFrame:
    """Return the slow steps that chance does not draw from the others.

    The median distance of a few steps may be small by chance: then some of the others are as far off.

    Args:
        slow: Steps with `excess`.
        others: The excess of the others, finite or null.
        limits: What is out of the ordinary.
    """
    known = others.drop_nulls().to_numpy()
    chances = chance_of_one_more(slow["excess"].to_numpy(), known, limits.spread) * (len(known) + len(slow))
    return slow.filter(pl.Series(chances) < CHANCE_OF_A_STEP)


def slow_workers(groups: pl.DataFrame, limits: Limits) -> pl.DataFrame:
    """Return the workers that are out of the ordinary, with `excess`, the logarithm above their peers."""
    peers = groups.filter(pl.len().over(STEP) > 1)
    if len(peers) < FEWEST_STEPS:
        return peers.clear().with_columns(excess=pl.lit(0.0))
    shared = pl.col("value").quantile(0.5, "lower").over(STEP)
    off = peers.select(pl.col("value") - pl.col("value").median().over(STEP)).to_series()
    peers = peers.with_columns(excess=pl.col("value") - shared)
    spread = robust_spread(off, limits.spread)
    usual = peers.filter(pl.col("excess") > max(SPREADS * spread, math.log(limits.times)))
    # Beside one that is fast for once, a usual worker is not slow: it must be nearer to its excess than to 0.
    middle = peers["value"].median() or 0.0
    usual = usual.filter(2 * (pl.col("value") - middle) > pl.col("excess"))
    return pl.concat([usual, _always_slow(peers, limits).join(usual, on=[*STEP, "worker"], how="anti")])


def _always_slow(peers: pl.DataFrame, limits: Limits) -> pl.DataFrame:
    """Return the steps of workers that are slow in most steps, or from one on, by how their distance varies.

    Of two workers, one of which is always slow, both are as far from their middle, and all distances are
    large: their spread tells nothing. How a worker's distance changes from step to step does.
    """
    steps = pl.len().over("validate", "worker")
    known = peers.filter(steps >= FEWEST_STEPS).sort("worker", *STEP)
    changes = known.select(pl.col("excess").diff().over("validate", "worker")).to_series().drop_nulls()
    spread = robust_spread(changes / math.sqrt(2), limits.spread)
    excess, apart = pl.col("excess"), math.log(_TIMES_ALWAYS)
    of_worker = ["validate", "worker"]
    always = (_beyond(excess, spread) & ((excess > 0).mean() >= _MOST_STEPS)).over(of_worker)
    # From a step on to the end: in each of these steps, so that nothing is chosen but the first of them.
    to_the_end = (excess > apart).cast(pl.Int8).cum_min(reverse=True).over(of_worker) > 0
    last = known.filter(to_the_end).filter(pl.len().over(of_worker) >= _FEWEST_OF_A_SIDE)
    last = last.filter(_beyond(excess, spread).over(of_worker))
    slow = known.filter(always & (excess > apart))
    return pl.concat([slow, last.join(slow, on=[*STEP, "worker"], how="anti")]).select(peers.columns)


def _beyond(excess: pl.Expr, spread: float) -> pl.Expr:
    """Return whether the median of some steps of a worker is farther off than chance explains."""
    least = SPREADS * spread / pl.len().cast(pl.Float64).sqrt()
    return excess.median() > pl.max_horizontal(least, pl.lit(math.log(_TIMES_ALWAYS)))


def robust_spread(offsets: pl.Series, least: float) -> float:
    """Return the standard deviation that the median absolute offset tells, but at least `least`."""
    middle: Any = offsets.abs().median()
    return max(least, _MAD * float(middle or 0.0))


def median_of_others(name: str, over: Sequence[str]) -> pl.Expr:
    """Return for each row the median of a column over all other rows of its kind; null if there are none.

    Args:
        name: The column; its values are not null.
        over: The columns that make a kind.
    """
    value = pl.col(name)
    others = pl.len().cast(pl.Int64) - 1
    rank = value.rank("ordinal").cast(pl.Int64) - 1
    low, high = ((others - 1) // 2).clip(lower_bound=0), others // 2
    at_low, at_high = (
        pl.min_horizontal(middle_rank + (rank <= middle_rank), others) for middle_rank in (low, high)
    )
    middle = (value.sort().gather(at_low) + value.sort().gather(at_high)) / 2
    return pl.when(pl.len().over(over) > 1).then(middle.over(over))


def excess_of(rows: pl.DataFrame, log: str = "excess", floor_sec: float = 0.0) -> pl.DataFrame:
    """Return rows with `excess_sec`: how much of `sec` being exp(log) times slower took.

    Args:
        rows: With `sec`, and the logarithm in `log`.
        log: The column of the logarithms.
        floor_sec: What was added to both sides of their ratios: `floor_of`.
    """
    excess_sec = (pl.col("sec") + floor_sec) * (1 - (-pl.col(log)).exp())
    return rows.with_columns(excess_sec=pl.min_horizontal("sec", excess_sec))


def floor_of(windows: pl.DataFrame) -> float:
    """Return the seconds to add to both sides of a ratio of times, so that none is of nearly nothing.

    Of two times far below it, neither is many times the other. It is 0.1 s, or 2 % of the median step.

    Args:
        windows: `Evidence.windows`.
    """
    took = windows.filter(~pl.col("validate")).select((pl.col("done_us") - pl.col("begin_us")) / 1e6)
    middle: Any = took.to_series().median() or 0.0
    return max(_LEAST_SEC, _OF_STEP * float(middle))
