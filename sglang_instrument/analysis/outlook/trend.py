"""Forecast a series of step times: a level that drifts, a slope that fades, and noise, all learnt from it.

The steps are cut into at most 24 blocks: what differs within a block is noise. The logarithm of a block's
mean is a local linear trend with a damped slope (Harvey, "Forecasting, structural time series models and the
Kalman filter", 1989, 2.3.3). How fast level and slope change, and how long the slope lasts, is not known:
each combination of a grid counts by how well it foretold each block from those before it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]

#: The fewest steps from which a trend is learnt.
FEWEST: Final = 5
_LEVELS: Final = (0.0, 0.03, 0.1, 0.2, 0.4, 0.8)  # deviation of the level from step to step, of the noise's
_SLOPES: Final = (0.0, 0.003, 0.01, 0.03)  # of the slope
_LASTS: Final = (0.1, 0.3, 1.0, 3.0)  # for how long a slope lasts, of the whole training
_SLOPE_PRIOR: Final = 1.5  # over the whole training: deviation of what its first slope would come to
#: Deviation of a change that nothing has shown yet, at the end of a training of which nothing is known, such
#: as growth that begins or ends later. It falls with the fourth power of the share that is to come.
_TURN: Final = 0.55
_MOST: Final = 60.0  # logarithm of seconds: of a few steps that scatter, draws may go beyond all numbers
_DRAWS: Final = 2_000
_LEAST_DEVIATION: Final = 1e-3  # of the logarithm: less is no noise of a real run
_FREEDOM: Final = 2.0  # of the prior of the variance, which is that of the differences from step to step
_BLOCKS: Final = 24  # of steps that follow one another: what differs within a block is noise


@dataclass(frozen=True)
class FutureSteps:
    """Draws of what is to come.

    Attributes:
        sec: Seconds of each step to come, one row a draw.
    """

    sec: Floats

    def ends(self, share: float) -> Floats:
        """Return a quantile of the time until the end of each step to come, in seconds."""
        quantiles: Floats = np.quantile(np.cumsum(self.sec, axis=1), share, axis=0)
        return quantiles


def future_of(
    seconds: Sequence[float], steps: int, extra_sec: Sequence[Sequence[float]] = (), seed: int = 0
) -> FutureSteps:
    """Draw the seconds of steps to come.

    Args:
        seconds: Of the steps that are known, in order, above 0; at least `FEWEST`.
        steps: How many are to come.
        extra_sec: Kinds of work beside that, such as validations and checkpoints: for each the seconds that
            each known step took. Work that came every so many steps comes so again, other work by chance.
        seed: Of the draws.

    Raises:
        ValueError: Too few steps are known.
    """
    random = np.random.default_rng(seed)
    blocks, width = _blocks(seconds, steps, random)
    drawn = np.repeat(blocks, width, axis=1)[:, :steps]
    for extra in extra_sec:
        drawn = drawn + _again(np.asarray(extra, dtype=np.float64), steps, random)
    return FutureSteps(drawn)


def seconds_left(seconds: Sequence[float], steps: int, shares: Sequence[float], seed: int = 0) -> list[float]:
    """Return quantiles of the seconds of all steps to come, in little memory however many these are.

    Args:
        seconds: As for `future_of`.
        steps: How many are to come, 1 or more.
        shares: The quantiles, from 0 to 1.
        seed: Of the draws.

    Raises:
        ValueError: Too few steps are known.
    """
    blocks, width = _blocks(seconds, steps, np.random.default_rng(seed))
    lengths = np.full(blocks.shape[1], width)
    lengths[-1] = steps - width * (blocks.shape[1] - 1)
    return [float(quantile) for quantile in np.quantile(blocks @ lengths, shares)]


def _blocks(seconds: Sequence[float], steps: int, random: Any) -> tuple[Floats, int]:
    """Return draws of the mean of each block of steps to come, one row a draw, and the steps of a block."""
    if len(seconds) < FEWEST:
        raise ValueError(f"{len(seconds)} steps are too few for a trend: {FEWEST} are needed")
    width = -(-len(seconds) // _BLOCKS)
    count = len(seconds) // width
    known = np.asarray(seconds[len(seconds) - count * width :], dtype=np.float64).reshape(count, width)
    to_come = -(-steps // width)
    filtered = _filtered(np.log(known.mean(axis=1)), to_come)
    return _drawn(filtered, to_come, random, max(1.0, width / steps)), width


@dataclass(frozen=True)
class _Filtered:
    """What is known after the last step, for each combination of the grid.

    Attributes:
        weight: Its probability.
        state: Mean of level and slope.
        covariance: Theirs, of the noise's variance.
        variance: Of the noise, its most probable value.
        freedom: Degrees of freedom of that.
        ratios: Deviations of level and slope from step to step, of the noise's, and the slope's damping.
        residuals: What each step was off, in deviations: of the most probable combination.
    """

    weight: Floats
    state: Floats
    covariance: Floats
    variance: Floats
    freedom: float
    ratios: Floats
    residuals: Floats


def _grid(blocks: int) -> Floats:
    rows = [
        (level, slope, float(np.exp(-1 / (lasts * blocks))))
        for level in _LEVELS
        for slope in _SLOPES
        for lasts in _LASTS
    ]
    return np.array(rows)


def _filtered(logs: Floats, to_come: int) -> _Filtered:
    """Run the filter of every combination over the series; it begins with the first step's level."""
    rough = max(float(np.median(np.abs(np.diff(logs)))) / 0.6745 / np.sqrt(2), _LEAST_DEVIATION)
    ratios = _grid(len(logs) + to_come)
    size = len(ratios)
    damping = ratios[:, 2]
    state = np.stack([np.full(size, logs[0]), np.zeros(size)], axis=1)
    covariance = np.zeros((size, 2, 2))
    covariance[:, 0, 0], covariance[:, 1, 1] = 1.0, (_SLOPE_PRIOR / (len(logs) + to_come) / rough) ** 2
    squares, log_sizes = np.full(size, _FREEDOM * rough**2), np.zeros(size)
    residuals = []
    for value in logs[1:]:
        state, covariance = _moved(state, covariance, damping, ratios)
        spread = covariance[:, 0, 0] + 1.0
        off = value - state[:, 0]
        squares += off**2 / spread
        log_sizes += np.log(spread)
        residuals.append(off / np.sqrt(spread))
        gain = covariance[:, :, 0] / spread[:, None]
        state = state + gain * off[:, None]
        covariance = covariance - gain[:, :, None] * covariance[:, None, 0, :]
    count = len(logs) - 1
    freedom = count + _FREEDOM
    fit = -0.5 * log_sizes - 0.5 * freedom * np.log(squares)
    weight = np.exp(fit - fit.max())
    weight /= weight.sum()
    variance = squares / freedom
    best = int(weight.argmax())
    of_best = np.array(residuals)[:, best] / np.sqrt(variance[best])
    return _Filtered(weight, state, covariance, variance, freedom, ratios, of_best)


def _moved(state: Floats, covariance: Floats, damping: Floats, ratios: Floats) -> tuple[Floats, Floats]:
    """Return state and covariance one step later: level + damping x slope, damping x slope."""
    slope = damping * state[:, 1]
    moved = np.stack([state[:, 0] + slope, slope], axis=1)
    across, of_slope = damping * covariance[:, 0, 1], damping**2 * covariance[:, 1, 1]
    later = np.empty_like(covariance)
    later[:, 1, 1] = of_slope + ratios[:, 1] ** 2
    later[:, 0, 1] = later[:, 1, 0] = across + of_slope
    later[:, 0, 0] = covariance[:, 0, 0] + 2 * across + of_slope + ratios[:, 0] ** 2
    return moved, later


def _drawn(filtered: _Filtered, steps: int, random: Any, noisier: float) -> Floats:
    """Return means of blocks to come: of combinations by their weight, with noise as it was.

    Args:
        filtered: What is known.
        steps: How many blocks are to come.
        random: Draws.
        noisier: How much larger the variance of the noise is: that of a block that is cut short.
    """
    chosen = random.choice(len(filtered.weight), size=_DRAWS, p=filtered.weight)
    deviation = np.sqrt(
        filtered.variance[chosen] * filtered.freedom / random.chisquare(filtered.freedom, _DRAWS)
    )
    level_sd, slope_sd, damping = (filtered.ratios[chosen, number] * 1.0 for number in range(3))
    roots = _roots(filtered.covariance[chosen])
    begin = filtered.state[chosen] + deviation[:, None] * np.einsum(
        "nij,nj->ni", roots, random.standard_normal((_DRAWS, 2))
    )
    level, slope = begin[:, 0], begin[:, 1]
    share = steps / (steps + len(filtered.residuals) + 1)
    turns = _TURN * share**4 / steps * random.standard_normal(_DRAWS)
    noise = random.choice(filtered.residuals - filtered.residuals.mean(), size=(_DRAWS, steps))
    drawn = np.empty((_DRAWS, steps))
    for step in range(steps):
        slope = damping * slope
        level = level + slope + turns + deviation * level_sd * random.standard_normal(_DRAWS)
        slope = slope + deviation * slope_sd * random.standard_normal(_DRAWS)
        drawn[:, step] = level + deviation * np.sqrt(noisier) * noise[:, step]
    return np.exp(np.minimum(drawn, _MOST))


def _roots(covariance: Floats) -> Floats:
    """Return the Cholesky factors of covariances, which may have no width in the slope."""
    roots = np.zeros_like(covariance)
    roots[:, 0, 0] = np.sqrt(np.maximum(covariance[:, 0, 0], 1e-18))
    roots[:, 1, 0] = covariance[:, 1, 0] / roots[:, 0, 0]
    roots[:, 1, 1] = np.sqrt(np.maximum(covariance[:, 1, 1] - roots[:, 1, 0] ** 2, 0.0))
    return roots


def _again(extra_sec: Floats, steps: int, random: Any) -> Floats:
    """Return extra times of steps to come: every so many steps as they came, else from any step on."""
    came = np.flatnonzero(extra_sec)
    if not len(came):
        return np.zeros((_DRAWS, steps))
    gaps = np.unique(np.diff(came))
    if len(gaps) == 1:
        drawn = np.zeros((_DRAWS, steps))
        places = np.arange(came[-1] + gaps[0] - len(extra_sec), steps, gaps[0])
        places = places[places >= 0]
        drawn[:, places] = random.choice(extra_sec[came], size=(_DRAWS, len(places)))
        return drawn
    first = random.integers(0, len(extra_sec), size=_DRAWS)
    places = (first[:, None] + np.arange(steps)[None, :]) % len(extra_sec)
    again: Floats = extra_sec[places]
    return again
