"""Estimate how much slower than usual a step and its workers are, from the requests so far.

The model is one of accelerated failure times: a request of worker w takes exp(k_w) times a duration drawn from
those of earlier steps. All factors lie on one logarithmic grid, so that scaling a time is a shift on the grid.
A request that is open counts with its age: it lasts longer than that (right-censored).
"""

from dataclasses import dataclass
from typing import Final

import numpy as np

from sglang_instrument.live.history import Floats, Ints, Requests

DELTA: Final = 0.05  # of the logarithm of a time, from one grid point to the next
REACH: Final = 40  # grid points to either side: factors from 1/7.4 to 7.4
SHIFTS: Final = np.arange(-REACH, REACH + 1)
_LEAST_SEC: Final = 1e-3
_BANDWIDTH: Final = 3.0  # of the smoothed density, in grid points
_NO_CHANCE: Final = 1e-9


@dataclass(frozen=True)
class Speeds:
    """How probable each factor is, on the grid `SHIFTS`.

    Attributes:
        step: Of the step: a probability for each shift.
        worker: Of each worker given the step's: workers x its shifts x the step's shifts.
        typical: The mean shift of each worker, in grid points.
    """

    step: Floats
    worker: Floats
    typical: Floats


def log_sec(sec: Floats) -> Floats:
    """Return the logarithm of durations; those below a millisecond count as one."""
    logs: Floats = np.log(np.maximum(sec, _LEAST_SEC))
    return logs


def speeds_of(
    usual_log: Floats, now: Requests, age_sec: float, workers: int, spread: tuple[float, float]
) -> Speeds:
    """Return how slow the step and its workers are.

    Args:
        usual_log: Logarithms of the durations of earlier requests, in the scale in which 0 is expected.
        now: The requests of the step so far; their workers are numbered from 0.
        age_sec: The age of the step.
        workers: The number of workers.
        spread: Standard deviations, before any request is seen, of the logarithm of the step's factor, and of
            a worker's around it.
    """
    by_worker = _log_likelihood(usual_log, now, age_sec, workers)
    of_step = _log_normal(SHIFTS * DELTA, spread[0])
    given = _log_normal((SHIFTS[:, None] - SHIFTS[None, :]) * DELTA, spread[1])  # worker's x step's
    joint = by_worker[:, :, None] + given[None, :, :]
    most = joint.max(axis=1, keepdims=True)
    chances = np.exp(joint - most)
    total = chances.sum(axis=1, keepdims=True)
    log_step = of_step + (most + np.log(total)).sum(axis=0)[0]
    step = np.exp(log_step - log_step.max())
    step /= step.sum()
    worker = chances / total
    return Speeds(step, worker, np.einsum("wks,s,k->w", worker, step, SHIFTS))


def _log_normal(values: Floats, deviation: float) -> Floats:
    logs = -0.5 * (values / deviation) ** 2
    normed: Floats = logs - np.log(np.exp(logs - logs.max()).sum(axis=0)) - logs.max()
    return normed


def _log_likelihood(usual_log: Floats, now: Requests, age_sec: float, workers: int) -> Floats:
    """Return for each worker and shift how likely its requests so far are."""
    is_open = ~np.isfinite(now.ended_sec)
    lasted = log_sec(np.where(is_open, age_sec, now.ended_sec) - now.begun_sec)
    low = min(usual_log.min(), lasted.min(initial=np.inf)) - DELTA * (REACH + 5 * _BANDWIDTH)
    high = max(usual_log.max(), lasted.max(initial=-np.inf)) + DELTA * (REACH + 5 * _BANDWIDTH)
    cells = int((high - low) / DELTA) + 1
    ends, lasts = _tables(_cells(usual_log, low), cells)
    at = _cells(lasted, low)
    found = np.zeros((workers, len(SHIFTS)))
    for chosen, table in ((~is_open, ends), (is_open, lasts)):
        counts = np.zeros((workers, cells))
        np.add.at(counts, (now.worker[chosen], at[chosen]), 1.0)
        # A factor of exp(shift) moves what is usual to the right: look the table up to the left.
        moved = np.clip(np.arange(cells)[:, None] - SHIFTS[None, :], 0, cells - 1)
        found += counts @ table[moved]
    return found


def _cells(logs: Floats, low: float) -> Ints:
    cells: Ints = ((logs - low) / DELTA).astype(np.int64)
    return cells


def _tables(usual: Ints, cells: int) -> tuple[Floats, Floats]:
    """Return the logarithms of the chance to end in each cell, and to last beyond its middle."""
    counts = np.bincount(usual, minlength=cells).astype(float)
    reach = np.arange(-int(4 * _BANDWIDTH), int(4 * _BANDWIDTH) + 1)
    kernel = np.exp(-0.5 * (reach / _BANDWIDTH) ** 2)
    smooth = np.convolve(counts, kernel / kernel.sum(), mode="same") / len(usual)
    # One request more, that may end at any time: nothing is impossible after a few steps.
    base = 1 / (len(usual) + 1)
    density = (1 - base) * smooth + base / cells
    lasting = np.cumsum(density[::-1])[::-1] - density / 2
    return np.log(density), np.log(np.maximum(lasting, _NO_CHANCE))
