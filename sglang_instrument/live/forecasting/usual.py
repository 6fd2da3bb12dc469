"""Derive from earlier steps what is usual: how long requests take, and how much that varies."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from sglang_instrument.live.forecasting.history import Floats, PastStep, Requests
from sglang_instrument.live.forecasting.remaining import Pool
from sglang_instrument.live.forecasting.speeds import Durations, Spread, log_sec

_FOLLOWS: Final = 0.05  # variance of the typical durations that outweighs what is expected of the longest
_UNKNOWN_SPREAD: Final = 0.3  # of the logarithms of factors, before any is known


@dataclass(frozen=True)
class Usual:
    """What earlier steps say, the last one at the end. Their requests all ended."""

    steps: tuple[PastStep, ...]

    @cached_property
    def _means(self) -> Floats:
        """The typical duration of a request in each step, as a logarithm.

        Steps of few requests differ by chance: their means are drawn to the mean of all.
        """
        logs = [log_sec(step.requests.lasted_sec) for step in self.steps]
        means = np.array([step_logs.mean() for step_logs in logs])
        by_chance = np.array([step_logs.var() / len(step_logs) for step_logs in logs])
        squares = max(float(((means - means.mean()) ** 2).sum() - by_chance[1:].sum()), 0.0)
        variance = _spread(squares, len(means) - 1).deviation ** 2
        return np.asarray(means.mean() + variance / (variance + by_chance) * (means - means.mean()))

    @cached_property
    def unit_sec(self) -> float:
        """The typical duration of a request in the last step, which is expected of the next."""
        return float(np.exp(self._means[-1]))

    @cached_property
    def spread(self) -> tuple[Spread, Spread]:
        """How much typical durations vary from step to step, and from worker to worker."""
        changes = np.diff(self._means)
        squares, workers = np.sum([_between_workers(step.requests) for step in self.steps], axis=0)
        return _spread(float((changes**2).sum()), len(changes)), _spread(float(squares), float(workers))

    @cached_property
    def stretch(self) -> float:
        """By how much the longest requests follow the usual ones from step to step: 1, fully, unless known.

        A cap on tokens, or long calls of which few requests have any, let them follow less.
        """
        longest = log_sec(np.array([_longest(step.requests.lasted_sec).mean() for step in self.steps]))
        apart = self._means - self._means.mean()
        follows = float(apart @ (longest - longest.mean()))
        return float(np.clip((_FOLLOWS + follows) / (_FOLLOWS + float(apart @ apart)), 0.0, 1.0))

    @cached_property
    def pool(self) -> Pool:
        """The earlier requests, as if each step and worker had been as fast as is expected of the next."""
        moved = self._means[-1] + self.stretch * (self._means - self._means[-1])
        scaled = [self._in_units(step.requests, mean) for step, mean in zip(self.steps, moved, strict=True)]
        return Pool.of(
            np.concatenate([durations for durations, _ in scaled]), _stacked([turns for _, turns in scaled])
        )

    @cached_property
    def durations(self) -> Durations:
        """How likely durations are in the next step, if everything takes a factor longer."""
        steps = zip(self.steps, self._means, strict=True)
        durations = [self._in_units(step.requests, mean)[0] for step, mean in steps]
        return Durations.of(np.concatenate(durations) * self.unit_sec)

    @cached_property
    def begun(self) -> Pool:
        """When earlier requests began, in place of how long they lasted; and when they ended, as a turn."""
        units = np.exp(self._means)
        begun = [step.requests.begun_sec / unit for step, unit in zip(self.steps, units, strict=True)]
        ended = [step.requests.ended_sec / unit for step, unit in zip(self.steps, units, strict=True)]
        return Pool.of(np.concatenate(begun), np.concatenate(ended)[:, None])

    @cached_property
    def after_sec(self) -> Floats:
        """What followed the last request of each step, ascending."""
        return np.sort([step.after_sec for step in self.steps])

    @cached_property
    def fewest(self) -> int:
        """The number of requests that no step had less than."""
        return min(len(step.requests.ids) for step in self.steps)

    def _in_units(self, requests: Requests, mean: float) -> tuple[Floats, Floats]:
        logs = log_sec(requests.lasted_sec)
        counts = np.maximum(np.bincount(requests.worker), 1)
        worker_means = np.bincount(requests.worker, logs) / counts
        # The mean of few requests says little about their worker: it counts the less, the fewer they are.
        variance = self.spread[1].deviation ** 2
        trust = variance / (variance + logs.var() / counts)
        unit = np.exp(mean + trust * (worker_means - logs.mean()))[requests.worker]
        return np.exp(logs) / unit, (requests.turns_sec - requests.begun_sec[:, None]) / unit[:, None]


def _longest(sec: Floats) -> Floats:
    return np.sort(sec)[-max(3, len(sec) // 10) :]


def _spread(squares: float, count: float) -> Spread:
    deviation = float(np.sqrt((_UNKNOWN_SPREAD**2 + squares) / (1 + count)))
    return Spread(deviation, 1 / (count + 2))  # Laplace's rule: nothing odd was seen so often


def _between_workers(requests: Requests) -> tuple[float, int]:
    """Return the squares by which workers' means differ more than chance explains, and their number."""
    logs = log_sec(requests.lasted_sec)
    counts = np.bincount(requests.worker)
    has_any = counts > 0
    workers = int(has_any.sum())
    if workers < 2 or len(logs) <= workers:
        return 0.0, 0
    counts = counts[has_any]
    means = np.bincount(requests.worker, logs)[has_any] / counts
    within = float((logs**2).sum() - (counts * means**2).sum()) / (len(logs) - workers)
    excess = float(means.var(ddof=1)) - within * float((1 / counts).mean())
    return max(excess, 0.0) * (workers - 1), workers - 1


def _stacked(tables: Sequence[Floats]) -> Floats:
    """Return tables of turns below each other; one without columns makes all of them unknown."""
    columns = [table.shape[1] for table in tables]
    if not min(columns):
        return np.empty((sum(map(len, tables)), 0))
    wide = [
        np.pad(table, ((0, 0), (0, max(columns) - table.shape[1])), constant_values=np.inf)
        for table in tables
    ]
    return np.concatenate(wide)
