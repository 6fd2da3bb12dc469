"""Estimate how much slower than usual a step and its workers are, from the requests so far.

The model is one of accelerated failure times: a request of a worker takes a factor times a duration drawn
from those of earlier steps. A request that is open counts with its age: it lasts longer than that (it is
right-censored). Factors and times share one logarithmic grid: multiplying a time is a shift along the grid.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from sglang_instrument.live.history import Floats, Ints, Requests

DELTA: Final = 0.05  # of the logarithm of a time, from one grid point to the next
_REACH: Final = 40  # grid points to either side: factors from 1/7.4 to 7.4
SHIFTS: Final = np.arange(-_REACH, _REACH + 1)
_LEAST_SEC: Final = 1e-3
_BANDWIDTH: Final = 3.0  # of the smoothed density of durations, in grid points
_KERNEL_REACH: Final = int(4 * _BANDWIDTH)
_NO_CHANCE: Final = 1e-9


@dataclass(frozen=True)
class Speeds:
    """How probable each factor of `SHIFTS` is, of the step and of its workers.

    Attributes:
        likelihood: Of each worker's requests, if the worker has that factor: workers x shifts.
        given: The chance of a worker's factor, given the step's: shifts x the step's shifts.
        before: The logarithm of the chance of each factor of the step, before any request is seen.
    """

    likelihood: Floats
    given: Floats
    before: Floats

    @cached_property
    def _by_step(self) -> Floats:
        """The likelihood of each worker's requests, given the step's factor."""
        return self.likelihood @ self.given

    @cached_property
    def step(self) -> Floats:
        """The chance of each factor of the step."""
        logs = self.before + np.log(self._by_step).sum(axis=0)
        chances = np.exp(logs - logs.max())
        return np.asarray(chances / chances.sum())

    @cached_property
    def typical(self) -> Floats:
        """The mean shift of each worker."""
        means = (self.likelihood * SHIFTS) @ self.given / self._by_step
        return np.asarray(means @ self.step)

    @property
    def typical_step(self) -> float:
        """The mean shift of the step."""
        return float(self.step @ SHIFTS)

    def of_worker(self, worker: int) -> Floats:
        """Return the chance of each factor of a worker, given the step's: shifts x the step's shifts."""
        chances: Floats = self.likelihood[worker][:, None] * self.given / self._by_step[worker]
        return chances


def log_sec(sec: Floats) -> Floats:
    """Return the logarithms of durations; those below a millisecond count as one."""
    return np.asarray(np.log(np.maximum(sec, _LEAST_SEC)))


def speeds_of(
    usual_log: Floats, now: Requests, age_sec: float, workers: int, spread: tuple[float, float]
) -> Speeds:
    """Return how slow the step and its workers are.

    Args:
        usual_log: Logarithms of the durations of earlier requests, scaled so that a factor of 1 is expected.
        now: The requests of the step so far; their workers are numbered from 0.
        age_sec: The age of the step.
        workers: The number of workers.
        spread: Standard deviations, before any request is seen, of the logarithm of the step's factor, and of
            a worker's around it.
    """
    logs = _log_likelihood(usual_log, now, age_sec, workers)
    likelihood = np.exp(logs - logs.max(axis=1, keepdims=True))
    given: Floats = np.exp(-0.5 * ((SHIFTS[:, None] - SHIFTS[None, :]) * DELTA / spread[1]) ** 2)
    before: Floats = -0.5 * (SHIFTS * DELTA / spread[0]) ** 2
    return Speeds(likelihood, given / given.sum(axis=0), before)


def _log_likelihood(usual_log: Floats, now: Requests, age_sec: float, workers: int) -> Floats:
    """Return for each worker and shift the logarithm of how likely its requests so far are."""
    is_open = now.is_open
    lasted = log_sec(np.where(is_open, age_sec, now.ended_sec) - now.begun_sec)
    margin = DELTA * (_REACH + _KERNEL_REACH)
    low = min(usual_log.min(), lasted.min(initial=np.inf)) - margin
    high = max(usual_log.max(), lasted.max(initial=-np.inf)) + margin
    cells = int((high - low) / DELTA) + 1
    ends, lasts = _tables(_cells(usual_log, low), cells)
    at = _cells(lasted, low)
    # A factor moves what is usual to the right, so its tables are looked up to the left.
    moved = np.clip(np.arange(cells)[:, None] - SHIFTS[None, :], 0, cells - 1)
    found = np.zeros((workers, len(SHIFTS)))
    for chosen, table in ((~is_open, ends), (is_open, lasts)):
        counts = np.zeros((workers, cells))
        np.add.at(counts, (now.worker[chosen], at[chosen]), 1.0)
        found += counts @ table[moved]
    return found


def _cells(logs: Floats, low: float) -> Ints:
    return np.asarray((logs - low) / DELTA).astype(np.int64)


def _tables(usual: Ints, cells: int) -> tuple[Floats, Floats]:
    """Return the logarithms of the chance to end in each cell, and to last beyond its middle."""
    counts = np.bincount(usual, minlength=cells).astype(float)
    kernel = np.exp(-0.5 * (np.arange(-_KERNEL_REACH, _KERNEL_REACH + 1) / _BANDWIDTH) ** 2)
    smooth = np.convolve(counts, kernel / kernel.sum(), mode="same") / len(usual)
    base = 1 / (len(usual) + 1)  # of one request more, that may end at any time: nothing is impossible
    density = (1 - base) * smooth + base / cells
    lasting = np.cumsum(density[::-1])[::-1] - density / 2
    return np.log(density), np.log(np.maximum(lasting, _NO_CHANCE))
