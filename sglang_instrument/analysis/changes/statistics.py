"""Say how much larger one run's steps are than another's, and how sure that is.

A step is one observation, because what happens inside a step is correlated. Ratios are differences of
logarithms. Pairs and samples of one size are compared by Student's t, other samples by Welch's; below 4
steps, with the freedom of the smaller sample alone. Where neighbouring steps are alike, steps count for fewer
than there are.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median
from typing import Final

from scipy.special import stdtr, stdtrit

#: Nominal risk that equal runs are called different in any metric. Steps are not normally distributed, and an
#: engine's speed wanders, so the real risk is higher: `benchmarks/compare.py` measures up to 6 %.
ALPHA: Final = 0.03
POWER: Final = 0.8
MOST_STEPS: Final = 10_000
_FEWEST_FOR_AUTOCORRELATION: Final = 4
_EQUAL: Final = 1e-9  # logarithms closer than this are equal, but for rounding
_FEWEST_FOR_WELCH: Final = 4
_FEWEST_TO_LEAVE_OUT: Final = 4  # of fewer steps, none can be spared
_COLD: Final = 0.095  # a first step that is slower than the others by this logarithm, or by ...
_COLD_DEVIATIONS: Final = 4.0  # ... so many of their robust standard deviations, whichever is more
_MAD_TO_DEVIATION: Final = 1.4826


@dataclass(frozen=True)
class MetricRatio:
    """The ratio of two runs in one metric.

    Attributes:
        first, other: Geometric means over the steps.
        steps: The number of steps of the run that has fewer; 0 if there are none.
        error: Standard error of the logarithm of the ratio; None if there are too few steps to know it.
        freedom: Degrees of freedom of the error.
        step_error: The error with one step of each run.
        step_freedom: How many degrees of freedom each further step of both runs adds.
    """

    first: float | None
    other: float | None
    steps: int
    error: float | None = None
    freedom: float = 0.0
    step_error: float = 0.0
    step_freedom: float = 1.0

    @property
    def is_exact(self) -> bool:
        """Whether the values do not scatter at all, so that the ratio alone decides."""
        return self.error is not None and self.error < _EQUAL

    @property
    def log(self) -> float:
        """The logarithm of the ratio."""
        return math.log(self.ratio) if self.ratio else 0.0

    @property
    def ratio(self) -> float | None:
        """`other` over `first`; None if one of them is unknown."""
        return None if self.first is None or self.other is None else self.other / self.first

    def p_value(self, limit: float = 1.0) -> float:
        """Return how likely a ratio so far from `limit`, or farther, is if `limit` is the true one."""
        if self.error is None:
            return 1.0
        away = abs(self.log - math.log(limit))
        if self.is_exact:
            return float(away < _EQUAL)
        return float(2 * stdtr(self.freedom, -away / self.error))

    def interval(self, alpha: float = ALPHA) -> tuple[float, float] | None:
        """Return the ratio's interval of confidence 1 - alpha; None if there are too few steps."""
        if self.error is None:
            return None
        reach = float(stdtrit(self.freedom, 1 - alpha / 2)) * self.error
        return math.exp(self.log - reach), math.exp(self.log + reach)

    def steps_needed(self, limit: float, alpha: float = ALPHA) -> int | None:
        """Return how many steps of each run would tell the ratio from `limit`, with a probability of 0.8.

        The steps are taken to scatter as they do; the true ratio is 1, or the measured one if that is closer
        to the limit. None stands for more than MOST_STEPS, and for steps whose scatter is not known.
        """
        away = abs(self.log - math.log(limit))
        return self.steps_to_tell(min(away, abs(math.log(limit))) if limit != 1 else away, alpha)

    def steps_to_tell(self, log: float, alpha: float = ALPHA) -> int | None:
        """Return how many steps of each run would tell a logarithm from 0, as `steps_needed` does."""
        if self.error is None or not self._tells(MOST_STEPS, log, alpha):
            return None
        low, high = 2, MOST_STEPS
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self._tells(middle, log, alpha) else (middle + 1, high)
        return low

    def _tells(self, steps: int, log: float, alpha: float) -> bool:
        """Return whether so many steps tell a logarithm from 0, with a probability of 0.8."""
        freedom = self.step_freedom * (steps - 1)
        error = self.step_error / math.sqrt(steps)
        return bool((stdtrit(freedom, 1 - alpha / 2) + stdtrit(freedom, POWER)) * error <= log)


def difference(first: Sequence[float], other: Sequence[float], paired: bool = False) -> MetricRatio:
    """Return how the steps of a run differ from those of another.

    Args:
        first: A value of each step of the first run, in order, all above 0.
        other: The values of the other run.
        paired: Whether the values at one place belong together.
    """
    if not first or not other:
        return MetricRatio(_mean(first), _mean(other), 0)
    logs = [list(map(math.log, values)) for values in (first, other)]
    if paired:
        logs = [[b - a for a, b in zip(*logs, strict=True)]]
    steps = min(map(len, logs))
    means = (_mean(first), _mean(other), steps)
    if steps < 2:
        return MetricRatio(*means)
    squares = [sum(value * value for value in _scatter(each)) for each in logs]
    variances = [square / (len(each) - 1) for square, each in zip(squares, logs, strict=True)]
    parts = [variance / len(each) for variance, each in zip(variances, logs, strict=True)]
    if not any(parts):
        return MetricRatio(*means, 0.0, float(steps - 1))
    below = sum(part**2 / (len(each) - 1) for part, each in zip(parts, logs, strict=True))
    alike = _autocorrelation(logs)
    wider = _widened(alike, steps)
    # Student's t of samples of one size holds for different variances, too, and tells more of few steps.
    if len(set(map(len, logs))) == 1:
        freedom = len(logs) * (steps - 1.0)
    else:
        # Of 2 steps, Welch's t takes a scatter that is small by chance for known: 11 % of equal runs differ.
        freedom = sum(parts) ** 2 / below if steps >= _FEWEST_FOR_WELCH else steps - 1.0
    fewer = (1 - alike) / (1 + alike)
    freedom = max(min(freedom, steps - 1.0), freedom * fewer)
    error, step_error = (math.sqrt(sum(each) * wider) for each in (parts, variances))
    return MetricRatio(*means, error, freedom, step_error, max(1.0, len(logs) * fewer))


def first_is_cold(values: Sequence[float]) -> bool:
    """Return whether the first of the steps' values is larger than the others by more than they scatter."""
    logs = [math.log(value) for value in values]
    if len(logs) < _FEWEST_TO_LEAVE_OUT:
        return False
    usual = median(logs[1:])
    deviation = _MAD_TO_DEVIATION * median(abs(log - usual) for log in logs[1:])
    return logs[0] - usual > max(_COLD, _COLD_DEVIATIONS * deviation)


def _mean(values: Sequence[float]) -> float | None:
    return math.exp(math.fsum(map(math.log, values)) / len(values)) if values else None


def _scatter(values: Sequence[float]) -> list[float]:
    mean = math.fsum(values) / len(values)
    return [value - mean for value in values]


def _autocorrelation(samples: Sequence[Sequence[float]]) -> float:
    """Return how alike neighbouring steps are, from 0 on, without the bias that few steps have.

    The estimate is too small by (1 + 3 rho) / n (Kendall, 1954). It is bounded by 1 - 3 / n: from few steps,
    more would be a guess.
    """
    steps = sum(map(len, samples)) / len(samples)
    if steps < _FEWEST_FOR_AUTOCORRELATION:
        return 0.0
    each = [_scatter(values) for values in samples]
    squares = sum(value * value for values in each for value in values)
    products = sum(a * b for values in each for a, b in pairwise(values))
    return min(1 - 3 / steps, max(0.0, (steps * products / squares + 1) / (steps - 3)))


def _widened(alike: float, steps: int) -> float:
    """Return the variance of a mean of autocorrelated steps, over what their scatter makes it look like."""
    if not alike:
        return 1.0
    covered = math.fsum((1 - lag / steps) * alike**lag for lag in range(1, steps))
    return (1 + 2 * covered) / (1 - 2 * covered / (steps - 1))


def holm(p_values: Sequence[float], weights: Sequence[float]) -> list[float]:
    """Return at which level each hypothesis is tested, by Holm's method with weights.

    A hypothesis is rejected if its p value is not above its level. So the interval of confidence 1 - level
    leaves out what the hypothesis claims just when the hypothesis is rejected.
    """
    levels, left, rejecting = [0.0] * len(p_values), math.fsum(weights), True
    for number in sorted(range(len(p_values)), key=lambda number: p_values[number] / weights[number]):
        levels[number] = ALPHA * weights[number] / left
        rejecting = rejecting and p_values[number] <= levels[number]
        left -= weights[number] if rejecting else 0.0
    return levels
