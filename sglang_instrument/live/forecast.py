"""Forecast when the step in progress ends, which request decides it, and which will not end."""

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from scipy.special import ndtr, ndtri

from sglang_instrument.live.ending import Usual, ending_of
from sglang_instrument.live.history import PastStep, StepSoFar, so_far

_CHANCE: Final = 0.8  # that the step ends within the interval
_MOST_STEPS: Final = 8  # earlier steps that are compared
_ASKED: Final = (0.2, 0.4, 0.6, 0.8)  # shares of a past step's time at which its forecast is checked
_FIRST_SPREAD: Final = 1.2  # of the checked forecasts, before any was checked
_AS_STEPS: Final = 3.0  # of how many steps' weight that is
_MOST_OFF: Final = 3.0  # standard deviations that one check may count


@dataclass(frozen=True)
class History:
    """Earlier steps of the run, and how good forecasts of them would have been.

    Attributes:
        steps: The last of them.
        checks: For each step after the first, where its end lay in its forecasts, in standard deviations.
    """

    steps: tuple[PastStep, ...] = ()
    checks: tuple[tuple[float, ...], ...] = ()

    def after(self, step: PastStep) -> "History":
        """Return the history when this step has ended, too."""
        if not len(step.requests.ids):
            return self
        checks = (*self.checks, self._check(step)) if self.steps else self.checks
        return History((*self.steps, step)[-_MOST_STEPS:], checks)

    @cached_property
    def usual(self) -> Usual:
        """What these steps say of the next."""
        return Usual(self.steps)

    def _check(self, step: PastStep) -> tuple[float, ...]:
        found = []
        for share in _ASKED:
            age_sec = share * step.end_sec
            chance = ending_of(self.usual, so_far(step, age_sec)).chance_by(step.end_sec - age_sec)
            found.append(float(np.clip(ndtri(chance), -_MOST_OFF, _MOST_OFF)))
        return tuple(found)

    @cached_property
    def levels(self) -> tuple[float, float]:
        """The chances at the ends of an interval: those that would have held in 80 % of the checks."""
        offs = np.array(self.checks[-20:]).reshape(-1, len(_ASKED))
        weight = _AS_STEPS + len(offs)
        middle = float(offs.mean(axis=1).sum()) / weight
        squares = float(((offs - middle) ** 2).mean(axis=1).sum())
        spread = np.sqrt((_AS_STEPS * _FIRST_SPREAD**2 + squares) / weight)
        reach = float(ndtri((1 + _CHANCE) / 2)) * spread
        return float(ndtr(middle - reach)), float(ndtr(middle + reach))


@dataclass(frozen=True)
class Forecast:
    """When the step in progress ends.

    Attributes:
        low_sec, high_sec: It ends within these times from now, in 8 of 10 steps.
        decides: Worker and request that most probably end last; None if none is open.
        decides_share: How probable that is.
        will_not_end: Worker and request of those that have left the range of all that ended. The interval and
            `decides` are those of the others.
    """

    low_sec: float
    high_sec: float
    decides: tuple[int, str] | None
    decides_share: float
    will_not_end: tuple[tuple[int, str], ...]


def forecast(history: History, now: StepSoFar) -> Forecast | None:
    """Return what is to be expected of the step in progress; None in the first step of a run."""
    if not history.steps:
        return None
    ending = ending_of(history.usual, now)
    low, high = (ending.within(level) for level in history.levels)
    requests = now.requests
    decides = None if ending.last is None else (int(requests.worker[ending.last[0]]), requests.ids[ending.last[0]])
    return Forecast(low, high, decides, ending.last[1] if ending.last else 0.0, ())
