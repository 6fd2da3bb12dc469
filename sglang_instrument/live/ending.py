"""Say how probable it is that a step has ended within a time, from what its requests have done so far."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from sglang_instrument.live.history import Floats, Ints, PastStep, Requests, StepSoFar
from sglang_instrument.live.remaining import Pool
from sglang_instrument.live.speeds import DELTA, SHIFTS, Speeds, log_sec, speeds_of

_GRID: Final = np.exp(np.arange(np.log(1e-3), np.log(1e3), DELTA))  # in units of a usual request
_MOST_OPEN: Final = 2048  # open requests that are looked at one by one; more are represented by a sample
_SAME_AGE: Final = 0.02  # ages that differ by less are compared with the same earlier requests
_UNKNOWN_SPREAD: Final = 0.3  # of the factors of steps and workers, before anything is known
_AS_STEPS: Final = 2.0  # of how many steps' weight that is


@dataclass(frozen=True)
class Ending:
    """When a step ends, from now.

    Attributes:
        sec: Ascending times.
        chances: The chance that it ended by each.
        last: The place of the open request that most often ends last, and how often; None if none is open.
    """

    sec: Floats
    chances: Floats
    last: tuple[int, float] | None

    def chance_by(self, sec: float) -> float:
        """Return the chance that the step ended within a time."""
        return float(np.interp(sec, self.sec, self.chances))

    def within(self, chance: float) -> float:
        """Return the time within which the step ends with a chance."""
        at = int(np.searchsorted(self.chances, chance))
        if at == 0 or at >= len(self.sec):
            return float(self.sec[min(at, len(self.sec) - 1)])
        before, after = self.chances[at - 1], self.chances[at]
        share = (chance - before) / (after - before)
        return float(self.sec[at - 1] + share * (self.sec[at] - self.sec[at - 1]))


@dataclass(frozen=True)
class Usual:
    """What earlier steps say of the next."""

    steps: tuple[PastStep, ...]

    @cached_property
    def _means(self) -> Floats:
        """The mean logarithm of the durations of each step: its typical duration."""
        return np.array([log_sec(_lasted(one.requests)).mean() for one in self.steps])

    @cached_property
    def unit_sec(self) -> float:
        """The typical duration of a request in the last step: what is expected of the next."""
        return float(np.exp(self._means[-1]))

    @cached_property
    def spread(self) -> tuple[float, float]:
        """By how much typical durations differ from step to step, and from worker to worker in a step."""
        changes = np.diff(self._means)
        of_step = _pooled(float((changes**2).sum()), len(changes))
        squares, count = 0.0, 0
        for one in self.steps:
            excess, workers = _between_workers(one.requests)
            squares, count = squares + excess * workers, count + workers
        return of_step, _pooled(squares, count / 4)

    @cached_property
    def pool(self) -> Pool:
        """The earlier requests, as if each step and worker had been as fast as is expected."""
        lasted, turns = zip(*map(self._in_units, self.steps), strict=True)
        return Pool.of(np.concatenate(lasted), _side_by_side(turns))

    @cached_property
    def begun(self) -> Pool:
        """When earlier requests began, in units; in place of turns, when they ended."""
        steps = zip(self.steps, self._means, strict=True)
        parts = [(one.requests.begun_sec, one.requests.ended_sec, np.exp(mean)) for one, mean in steps]
        begun = np.concatenate([begun / unit for begun, _, unit in parts])
        ended = np.concatenate([ended / unit for _, ended, unit in parts])
        return Pool.of(begun, ended[:, None])

    def _in_units(self, step: PastStep) -> tuple[Floats, Floats]:
        requests = step.requests
        logs = log_sec(_lasted(requests))
        unit = np.exp(_typical(requests.worker, logs, self.spread[1]))[requests.worker]
        lasted = _lasted(requests) / unit
        return lasted, (requests.turns_sec - requests.begun_sec[:, None]) / unit[:, None]


def _lasted(requests: Requests) -> Floats:
    return requests.ended_sec - requests.begun_sec


def _pooled(squares: float, count: float) -> float:
    known = _AS_STEPS * _UNKNOWN_SPREAD**2
    return float(np.sqrt((known + squares) / (_AS_STEPS + count)))


def _between_workers(requests: Requests) -> tuple[float, int]:
    """Return by how much workers' means differ more than chance does (a variance), and their number."""
    logs = log_sec(_lasted(requests))
    counts = np.bincount(requests.worker)
    own = counts > 0
    workers = int(own.sum())
    if workers < 2 or len(logs) <= workers:
        return 0.0, 0
    means = np.bincount(requests.worker, logs)[own] / counts[own]
    within = np.bincount(requests.worker, logs**2)[own].sum() - (counts[own] * means**2).sum()
    by_chance = within / (len(logs) - workers) * (1 / counts[own]).mean()
    return max(float(means.var(ddof=1) - by_chance), 0.0), workers - 1


def _typical(worker: Ints, logs: Floats, spread: float) -> Floats:
    """Return the mean logarithm of each worker, nearer to that of all the fewer requests it has."""
    counts = np.maximum(np.bincount(worker), 1)
    own = np.bincount(worker, logs) / counts
    trust = spread**2 / (spread**2 + max(float(logs.var()), 1e-6) / counts)
    typical: Floats = logs.mean() + trust * (own - logs.mean())
    return typical


def _side_by_side(tables: Sequence[Floats]) -> Floats:
    """Return tables of turns below each other; one without columns makes all of them unknown."""
    columns = [table.shape[1] for table in tables]
    if not min(columns):
        return np.empty((sum(map(len, tables)), 0))
    wide = [np.pad(one, ((0, 0), (0, max(columns) - one.shape[1])), constant_values=np.inf) for one in tables]
    return np.concatenate(wide)


def ending_of(usual: Usual, now: StepSoFar) -> Ending:
    """Return when a step ends, by what earlier steps say."""
    names, worker = np.unique(now.requests.worker, return_inverse=True)
    requests = Requests(
        now.requests.ids, worker, now.requests.begun_sec, now.requests.ended_sec, now.requests.turns_sec
    )
    workers = max(len(names), 1)
    usual_log = np.log(usual.pool.lasted) + np.log(usual.unit_sec)
    speeds = speeds_of(usual_log, requests, now.age_sec, workers, usual.spread)
    logs, places, owner, weight = _open_chances(usual, requests, now.age_sec, speeds)
    by_worker = np.zeros((workers + 1, len(_GRID)))
    np.add.at(by_worker, owner, logs * weight)
    speeds, by_worker = _with_missing(usual, now, speeds, by_worker)
    chances = _mixed(by_worker, speeds)
    last = _last(logs, owner, chances, speeds.typical, places)
    sec = _GRID * usual.unit_sec
    return _with_after(usual, now, Ending(sec, chances, last))


def _open_chances(
    usual: Usual, now: Requests, age_sec: float, speeds: Speeds
) -> tuple[Floats, Ints, Ints, float]:
    """Return the chances of open requests at their workers' typical speeds, and which requests these are."""
    places = np.flatnonzero(~np.isfinite(now.ended_sec))
    weight = max(len(places) / _MOST_OPEN, 1.0)
    if weight > 1:
        places = places[np.linspace(0, len(places) - 1, _MOST_OPEN).astype(np.int64)]
    owner = now.worker[places]
    unit = usual.unit_sec * np.exp(speeds.typical[owner] * DELTA)
    ages = (age_sec - now.begun_sec[places]) / unit
    turn, in_turn = _turns(now.turns_sec[places], age_sec, unit)
    logs = np.zeros((len(places), len(_GRID)))
    cells = np.round(np.log(np.maximum(ages, 1e-3)) / _SAME_AGE).astype(np.int64)
    for cell in np.unique(cells):
        chosen = cells == cell
        age = float(ages[chosen].mean())
        logs[chosen] = usual.pool.log_chances(age, turn[chosen], in_turn[chosen], _GRID)
    return logs, places, owner, weight


def _turns(turns_sec: Floats, age_sec: float, unit: Floats) -> tuple[Ints, Floats]:
    """Return the turn of each open request, -1 if it is not known, and how long it has been in it, in units."""
    if not turns_sec.shape[1] or not len(turns_sec):
        return np.full(len(turns_sec), -1), np.zeros(len(turns_sec))
    turn = (turns_sec <= age_sec).sum(axis=1) - 1
    began = turns_sec[np.arange(len(turn)), np.maximum(turn, 0)]
    return turn, np.where(turn >= 0, age_sec - began, 0.0) / unit


def _with_missing(
    usual: Usual, now: StepSoFar, speeds: Speeds, by_worker: Floats
) -> tuple[Speeds, Floats]:
    """Add the requests that did not begin yet, as those of one more worker, as fast as the step."""
    typical = float(speeds.step @ SHIFTS)
    age = now.age_sec / usual.unit_sec / np.exp(typical * DELTA)
    later, count = usual.begun.longer_than(age)
    expected = now.expected
    if expected is None:
        expected = min(len(one.requests.ids) for one in usual.steps) if count else 0
    missing = expected - len(now.requests.ids)
    if missing <= 0:
        return speeds, by_worker[:-1]
    if count:
        ends = np.sort(later.turns[:, 0] - age)
        shares = np.searchsorted(ends, _GRID, side="right") / (len(ends) + 1)
        logs = np.log(np.maximum(shares + (1 - np.exp(-_GRID)) / (len(ends) + 1), 1e-12))
    else:
        logs = usual.pool.log_chances(0.0, np.array([-1]), np.zeros(1), _GRID)[0]
    by_worker[-1] = logs * missing
    as_step = np.eye(len(SHIFTS))[None]
    worker = np.concatenate([speeds.worker, as_step])
    return Speeds(speeds.step, worker, np.append(speeds.typical, typical)), by_worker


def _mixed(by_worker: Floats, speeds: Speeds) -> Floats:
    """Return the chances that all requests ended, over all factors of the step and its workers."""
    likely = speeds.step > 1e-4
    total = np.zeros((int(likely.sum()), len(_GRID)))
    places = np.arange(len(_GRID))
    for logs, chances, typical in zip(by_worker, speeds.worker, speeds.typical, strict=True):
        # The chances hold at the typical factor; another one is a shift of them along the grid.
        own = np.flatnonzero(chances[:, likely].max(axis=1) > 1e-4)
        moved = np.clip(places[None, :] - (SHIFTS[own] - round(typical))[:, None], 0, len(_GRID) - 1)
        mixed = chances[own][:, likely].T @ np.exp(logs[moved])
        total += np.log(np.maximum(mixed, 1e-300))
    weights = speeds.step[likely] / speeds.step[likely].sum()
    mixture: Floats = weights @ np.exp(total)
    return mixture


def _last(
    logs: Floats, owner: Ints, chances: Floats, typical: Floats, places: Ints
) -> tuple[int, float] | None:
    """Return the request that most often ends last, and how often it does."""
    if not len(places):
        return None
    moved = np.clip(np.arange(len(_GRID)) - np.round(typical[owner]).astype(np.int64)[:, None], 0, len(_GRID) - 1)
    rates = np.diff(np.take_along_axis(logs, moved, axis=1), axis=1)
    shares = rates @ ((chances[1:] + chances[:-1]) / 2)
    best = int(shares.argmax())
    return int(places[best]), float(min(shares[best], 1.0))


def _with_after(usual: Usual, now: StepSoFar, ending: Ending) -> Ending:
    """Add what follows the last request."""
    after = np.sort([max(one.after_sec, 0.0) for one in usual.steps])
    done = ending.chances[0] > 0.5
    if done:
        since = now.age_sec - float(now.requests.ended_sec.max(initial=0.0))
        left = after[after > since] - since
        grid = ending.sec
        typical = max(float(after.mean()), 0.1)
        beyond = 1 - np.exp(-grid / typical)
        ended = np.searchsorted(left, grid, side="right")
        return Ending(grid, (ended + beyond) / (len(left) + 1), ending.last)
    mixed = np.mean([np.interp(ending.sec - one, ending.sec, ending.chances, left=0.0) for one in after], axis=0)
    return Ending(ending.sec, mixed, ending.last)
