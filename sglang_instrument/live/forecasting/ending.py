"""Say how probable it is that a step ends within a time, from what its requests have done so far.

The step ends when its last request has, and what follows it. So the chance that all requests end within a
time is the product of their chances, given how slow the step and its workers are; the mean over these factors
is what resampling the longest request would give with draws without end.
"""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from sglang_instrument.live.forecasting.history import Floats, Ints, Requests, StepSoFar
from sglang_instrument.live.forecasting.remaining import Pool
from sglang_instrument.live.forecasting.speeds import DELTA, SHIFTS, Speeds, product, speeds_of
from sglang_instrument.live.forecasting.usual import Usual

_GRID: Final = np.exp(np.arange(np.log(1e-3), np.log(1e3), DELTA))  # times, in units of a usual request
_CELLS: Final = np.arange(len(_GRID))
_MOST_OPEN: Final = 1024  # open requests that are looked at one by one; a sample stands for more
_MOST_LAST: Final = 128  # of them that may be the last to end: the least probable to end by then
_SAME_AGE: Final = 0.02  # open requests whose ages differ less are compared with the same earlier ones
_LIKELY: Final = 1e-4  # factors that are less probable are left out
_LEAST: Final = 1e-300


@dataclass(frozen=True)
class Ending:
    """When a step ends.

    Attributes:
        sec: Ascending times from now.
        chances: The chance that it ended by each.
        last: The place of the open request that most probably ends last, and how probable that is; None if
            none is open.
    """

    sec: Floats
    chances: Floats
    last: tuple[int, float] | None

    def chance_by(self, sec: float) -> float:
        """Return the chance that the step ends within a time."""
        return float(np.interp(sec, self.sec, self.chances, left=0.0))

    def within(self, chance: float) -> float:
        """Return the time within which the step ends with this chance."""
        after = min(int(np.searchsorted(self.chances, chance)), len(self.sec) - 1)
        if not after or self.chances[after] <= self.chances[after - 1]:
            return float(self.sec[after])
        share = (chance - self.chances[after - 1]) / (self.chances[after] - self.chances[after - 1])
        return float(self.sec[after - 1] + min(share, 1.0) * (self.sec[after] - self.sec[after - 1]))


@dataclass(frozen=True)
class _StillOpen:
    """The chances of open requests to end within the times of the grid, in units at their workers' speeds.

    Attributes:
        places: Which requests these are.
        worker: Their workers.
        logs: The logarithms of their chances, a row a request.
        stands_for: How many requests each of them stands for.
    """

    places: Ints
    worker: Ints
    logs: Floats
    stands_for: float


def ending_of(usual: Usual, now: StepSoFar) -> Ending:
    """Return when a step ends, by what earlier steps say of it."""
    workers = int(now.requests.worker.max(initial=0)) + 1
    speeds = speeds_of(usual.durations, now.requests, now.age_sec, workers, usual.spread)
    still = _open(usual, now, speeds)
    by_worker = np.zeros((workers, len(_GRID)))
    np.add.at(by_worker, still.worker, still.logs * still.stands_for)
    missing = _missing(usual, now, speeds)
    if not len(still.places) and missing is None:
        return _after_the_last(usual, now)
    chances = _chances(usual, by_worker, missing, speeds)
    sec = _GRID * max(usual.unit_sec, float(usual.after_sec[-1]) / 10)
    grid_sec = _GRID * usual.unit_sec
    with_after = [np.interp(sec - after, grid_sec, chances, left=0.0) for after in usual.after_sec]
    return Ending(sec, np.mean(with_after, axis=0), _last(usual, still, speeds, chances, missing is None))


def _open(usual: Usual, now: StepSoFar, speeds: Speeds) -> _StillOpen:
    places = np.flatnonzero(now.requests.is_open)
    stands_for = max(len(places) / _MOST_OPEN, 1.0)
    if stands_for > 1:
        places = places[np.linspace(0, len(places) - 1, _MOST_OPEN).astype(np.int64)]
    open_requests = now.requests.chosen(places)
    unit = usual.unit_sec * np.exp(usual.stretch * speeds.typical[open_requests.worker] * DELTA)
    ages = (now.age_sec - open_requests.begun_sec) / unit
    turn, in_turn_sec = _turns(open_requests, now.age_sec)
    logs = np.zeros((len(places), len(_GRID)))
    groups = np.round(np.log(np.maximum(ages, _GRID[0])) / _SAME_AGE)
    for group in np.unique(groups):
        alike = groups == group
        age = float(ages[alike].mean())
        logs[alike] = usual.pool.log_chances(age, turn[alike], in_turn_sec[alike] / unit[alike], _GRID)
    return _StillOpen(places, open_requests.worker, logs, stands_for)


def _turns(requests: Requests, age_sec: float) -> tuple[Ints, Floats]:
    """Return the turn of each open request, -1 where it is not known, and for how long it has been in it."""
    turn = (requests.turns_sec <= age_sec).sum(axis=1) - 1
    if not requests.turns_sec.shape[1]:
        return turn, np.zeros(len(turn))
    began_sec = requests.turns_sec[np.arange(len(turn)), np.maximum(turn, 0)]
    return turn, np.where(turn >= 0, age_sec - began_sec, 0.0)


def _missing(usual: Usual, now: StepSoFar, speeds: Speeds) -> Floats | None:
    """Return the logarithm of the chances that the requests end that have not begun; None without any.

    They are compared with the earlier requests that had not begun when their steps were as old. Where there
    are none, requests are only missing if their number is known, and begin now.
    """
    age = now.age_sec / usual.unit_sec / np.exp(usual.stretch * speeds.typical_step * DELTA)
    later = usual.begun.longer_than(age)
    count = later.stands_for.sum()
    expected = now.expected if now.expected is not None else usual.fewest * bool(count)
    missing = expected - len(now.requests.ids)
    if missing <= 0:
        return None
    if not count:
        unknown, no_time = np.array([-1]), np.zeros(1)
        return np.asarray(missing * usual.pool.log_chances(0.0, unknown, no_time, _GRID)[0])
    order = np.argsort(later.turns[:, 0])
    ends = Pool(later.turns[order, 0], later.turns[:0], later.stands_for[order])
    chances = (ends.ended(_GRID + age) + usual.pool.beyond(0.0, _GRID)) / (count + 1)
    return np.asarray(missing * np.log(np.maximum(chances, _LEAST)))


def _chances(usual: Usual, by_worker: Floats, missing: Floats | None, speeds: Speeds) -> Floats:
    """Return the chances that all requests ended, over all factors of the step and its workers."""
    likely = speeds.step > _LIKELY
    total = np.zeros((int(likely.sum()), len(_GRID)))
    for worker, logs in enumerate(by_worker):
        if logs.any():
            factors = speeds.of_worker(worker)[:, likely]
            shifts = np.flatnonzero(factors.max(axis=1) > _LIKELY)
            moved = _moved(usual.stretch * SHIFTS[shifts])
            mixed = product(factors[shifts].T, np.exp(logs[moved])) / factors[shifts].sum(axis=0)[:, None]
            total += np.log(np.maximum(mixed, _LEAST))
    if missing is not None:
        total += missing[_moved(usual.stretch * SHIFTS[likely])]
    step = speeds.step[likely] / speeds.step[likely].sum()
    return np.asarray(step @ np.exp(total))


def _moved(shifts: NDArray[Any]) -> Ints:
    """Return where the grid's chances are looked up if everything takes these factors longer; a row each."""
    return np.asarray(
        np.clip(_CELLS[None, :] - np.round(shifts).astype(np.int64)[:, None], 0, len(_GRID) - 1)
    )


def _last(
    usual: Usual, still: _StillOpen, speeds: Speeds, chances: Floats, all_begun: bool
) -> tuple[int, float] | None:
    """Return the request that most probably ends last, and how probable that is."""
    if not len(still.places):
        return None
    middle = int(np.searchsorted(chances, 0.5))
    slowest = np.argsort(still.logs[:, min(middle, len(_GRID) - 1)])[:_MOST_LAST]
    typical = usual.stretch * speeds.typical[still.worker[slowest]]
    slowest_chances = np.exp(np.take_along_axis(still.logs[slowest], _moved(typical), axis=1))
    others = np.minimum(chances / slowest_chances, 1.0)  # the chance that all others have ended
    shares = (np.diff(slowest_chances, axis=1) * (others[:, 1:] + others[:, :-1]) / 2).sum(axis=1)
    best = int(shares.argmax())
    total = float(shares.sum()) * still.stands_for
    # One of them ends last, unless others may: the sum differs from 1 by the coarseness of the grid.
    least = _LEAST if all_begun and len(slowest) == len(still.places) else 1.0
    return int(still.places[slowest[best]]), float(shares[best]) / max(total, least)


def _after_the_last(usual: Usual, now: StepSoFar) -> Ending:
    """Return when a step ends whose requests have all ended; what follows may take longer than ever."""
    since = max(now.age_sec - now.requests.last_end_sec, 0.0)
    left = usual.after_sec[usual.after_sec > since] - since
    longest = max(since, float(usual.after_sec[-1]), 0.1)
    sec = _GRID * longest
    tail = max(float(usual.after_sec.std()), 0.1 * longest) if len(left) else longest
    beyond = 1 - np.exp(-np.maximum(sec - left.max(initial=0.0), 0.0) / tail)
    return Ending(sec, (np.searchsorted(left, sec, side="right") + beyond) / (len(left) + 1), None)
