"""Estimate how much slower than usual a step and its workers are, from the requests so far.

The model is one of accelerated failure times: a request of a worker takes a factor times a duration drawn
from those of earlier steps. A request that is open counts with its age: it lasts longer than that (it is
right-censored). Factors and times share one logarithmic grid: multiplying a time is a shift along the grid.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Final, NamedTuple

import numpy as np

from sglang_instrument.live.forecasting.history import Floats, Ints, Requests

DELTA: Final = 0.05  # of the logarithm of a time, from one grid point to the next
_REACH: Final = 40  # grid points to either side: factors from 1/7.4 to 7.4
SHIFTS: Final = np.arange(-_REACH, _REACH + 1)
_LEAST_SEC: Final = 1e-3
_CELLS: Final = 500  # of the grid of durations: from a millisecond to two years
_BANDWIDTH: Final = 3.0  # of the smoothed density of durations, in grid points
_KERNEL_REACH: Final = int(4 * _BANDWIDTH)
_ALONE: Final = 0.5  # requests share engines: together, they say as much as half of them would alone
_NO_CHANCE: Final = 1e-9
_ODD: Final = 0.7  # standard deviation of the logarithm of a factor that is out of the ordinary


@dataclass(frozen=True)
class Durations:
    """How likely durations are if everything takes a factor longer: cells of their grid x shifts.

    Attributes:
        log_ends: The logarithm of the chance that a request ends in the cell.
        log_lasts: The logarithm of the chance that it lasts beyond the middle of the cell.
    """

    log_ends: Floats
    log_lasts: Floats

    @classmethod
    def of(cls, sec: Floats) -> "Durations":
        """Return how likely durations are, given some that were observed."""
        counts = np.bincount(_cells(sec), minlength=_CELLS).astype(float)
        kernel = np.exp(-0.5 * (np.arange(-_KERNEL_REACH, _KERNEL_REACH + 1) / _BANDWIDTH) ** 2)
        smooth = np.convolve(counts, kernel / kernel.sum(), mode="same") / len(sec)
        base = 1 / (len(sec) + 1)  # of one request more, that may end at any time: nothing is impossible
        density = (1 - base) * smooth + base / _CELLS
        lasting = np.cumsum(density[::-1])[::-1] - density / 2
        # A factor moves what is usual to the right, so it is looked up to the left.
        moved = np.clip(np.arange(_CELLS)[:, None] - SHIFTS[None, :], 0, _CELLS - 1)
        return cls(np.log(density)[moved], np.log(np.maximum(lasting, _NO_CHANCE))[moved])


class Spread(NamedTuple):
    """How much a factor varies, before any request is seen.

    Attributes:
        deviation: The standard deviation of its logarithm, usually.
        odd: The chance that it is out of the ordinary: then it is twice or half as much, or thereabouts.
    """

    deviation: float
    odd: float

    def chances(self, shifts: Ints) -> Floats:
        """Return a weight for each shift; those of all `SHIFTS` are not normed."""
        usual, odd = (
            np.exp(-0.5 * (shifts * DELTA / deviation) ** 2) / deviation
            for deviation in (self.deviation, _ODD)
        )
        return np.asarray((1 - self.odd) * usual + self.odd * odd, dtype=np.float64)


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
        return product(self.likelihood, self.given)

    @cached_property
    def step(self) -> Floats:
        """The chance of each factor of the step."""
        logs = self.before + np.log(self._by_step).sum(axis=0)
        chances = np.exp(logs - logs.max())
        return np.asarray(chances / chances.sum())

    @cached_property
    def typical(self) -> Floats:
        """The mean shift of each worker."""
        means = product(self.likelihood * SHIFTS, self.given) / self._by_step
        return np.asarray(means @ self.step)

    @property
    def typical_step(self) -> float:
        """The mean shift of the step."""
        return float(self.step @ SHIFTS)

    def of_worker(self, worker: int) -> Floats:
        """Return the chance of each factor of a worker, given the step's: shifts x the step's shifts."""
        chances: Floats = self.likelihood[worker][:, None] * self.given / self._by_step[worker]
        return chances


def product(left: Floats, other: Floats) -> Floats:
    """Return a matrix product on this thread alone: BLAS would take all cores of a machine that trains."""
    return np.asarray(np.einsum("ij,jk->ik", left, other))


def log_sec(sec: Floats) -> Floats:
    """Return the logarithms of durations; those below a millisecond count as one."""
    return np.asarray(np.log(np.maximum(sec, _LEAST_SEC)))


def speeds_of(
    usual: Durations, now: Requests, age_sec: float, workers: int, spread: tuple[Spread, Spread]
) -> Speeds:
    """Return how slow the step and its workers are.

    Args:
        usual: The durations of earlier requests, scaled so that a factor of 1 is expected.
        now: The requests of the step so far; their workers are numbered from 0.
        age_sec: The age of the step.
        workers: The number of workers.
        spread: How much the step's factor varies, and a worker's around it.
    """
    is_open = now.is_open
    cells = _cells(np.where(is_open, age_sec, now.ended_sec) - now.begun_sec)
    logs = np.zeros((workers, len(SHIFTS)))
    for chosen, table in ((~is_open, usual.log_ends), (is_open, usual.log_lasts)):
        places = now.worker[chosen] * _CELLS + cells[chosen]
        counts = np.bincount(places, minlength=workers * _CELLS).astype(float)
        logs += product(counts.reshape(workers, _CELLS), table)
    logs *= _ALONE
    likelihood = np.exp(logs - logs.max(axis=1, keepdims=True))
    given = spread[1].chances(SHIFTS[:, None] - SHIFTS[None, :])
    return Speeds(likelihood, given / given.sum(axis=0), np.log(spread[0].chances(SHIFTS)))


def _cells(sec: Floats) -> Ints:
    places = (log_sec(sec) - np.log(_LEAST_SEC)) / DELTA
    return np.asarray(np.clip(places, 0, _CELLS - 1), dtype=np.int64)
