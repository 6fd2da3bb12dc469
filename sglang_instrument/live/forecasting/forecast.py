"""Forecast when the step in progress ends, which request decides it, and which will not end."""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import Final

import numpy as np
from scipy.special import ndtr, ndtri, stdtrit

from sglang_instrument.live.forecasting.ending import Ending, ending_of
from sglang_instrument.live.forecasting.hanging import hanging
from sglang_instrument.live.forecasting.history import PastStep, StepSoFar
from sglang_instrument.live.forecasting.result import Forecast
from sglang_instrument.live.forecasting.usual import Usual

_CHANCE: Final = 0.8  # that a step ends within its interval
MOST_STEPS: Final = 8  # the last steps, with which a step is compared
_MOST_CHECKS: Final = 20  # the last steps whose forecasts are checked
_CHECKED: Final = (0.2, 0.4, 0.6, 0.8)  # at these shares of their time
_FIRST_SPREAD: Final = 1.0  # of the checks, before any is known
_AS_STEPS: Final = 6.0  # how many steps outweigh that
_FREEDOM: Final = 3.0  # degrees of freedom before any check
_MOST_OFF: Final = 3.0  # standard deviations for which a check counts at most


@dataclass(frozen=True)
class History:
    """Earlier steps of one run, and how good forecasts of them would have been.

    Training steps and validations have a history each.

    Attributes:
        steps: The last of them.
        checks: Where the ends of earlier steps lay in the forecasts that their own past gave, in standard
            deviations.
    """

    steps: tuple[PastStep, ...] = ()
    checks: tuple[tuple[float, ...], ...] = ()

    def after(self, step: PastStep) -> "History":
        """Return the history after one more step; it makes the forecasts of that step that are checked."""
        ended = np.flatnonzero(~step.requests.is_open)
        if not len(ended):
            return self
        step = replace(step, requests=step.requests.chosen(ended))
        checks = (*self.checks, self._check(step)) if self.steps else self.checks
        return History((*self.steps, step)[-MOST_STEPS:], checks[-_MOST_CHECKS:])

    def ending(self, now: StepSoFar) -> Ending:
        """Return when a step ends, as these steps say, without regard to the checks."""
        return ending_of(self._usual, now)

    @cached_property
    def _usual(self) -> Usual:
        return Usual(self.steps)

    def _check(self, step: PastStep) -> tuple[float, ...]:
        ages = [share * step.end_sec for share in _CHECKED]
        chances = [self.ending(step.so_far(age)).chance_by(step.end_sec - age) for age in ages]
        return tuple(np.clip(ndtri(chances), -_MOST_OFF, _MOST_OFF).tolist())

    @cached_property
    def levels(self) -> tuple[float, float]:
        """The chances between which 80 % of the checked ends lay: the levels of the ends of an interval."""
        offs = np.array(self.checks).reshape(-1, len(_CHECKED))
        weight = _AS_STEPS + len(offs)
        middle = float(offs.mean(axis=1).sum()) / weight if len(offs) else 0.0
        squares = float(((offs - middle) ** 2).mean(axis=1).sum()) if len(offs) else 0.0
        spread = np.sqrt((_AS_STEPS * _FIRST_SPREAD**2 + squares) / weight)
        # Student's: the fewer checks there are, the less is known of their spread.
        reach = float(stdtrit(_FREEDOM + len(offs), (1 + _CHANCE) / 2) * spread)
        return float(ndtr(middle - reach)), float(ndtr(middle + reach))


def forecast(history: History, now: StepSoFar) -> Forecast | None:
    """Return what is to be expected of the step in progress; None while no step of the run has ended."""
    if not history.steps:
        return None
    named = hanging(history.steps, now)
    will_not_end = tuple(_name(now, place) for place in named)
    others = np.setdiff1d(np.arange(len(now.requests.ids)), named)
    expected = None if now.expected is None else now.expected - len(named)
    now = replace(now, requests=now.requests.chosen(others), expected=expected) if named else now
    ending = history.ending(now)
    low_sec, high_sec = (ending.within(level) for level in history.levels)
    decides, share = (None, 0.0) if ending.last is None else (_name(now, ending.last[0]), ending.last[1])
    return Forecast(low_sec, high_sec, decides, share, will_not_end)


def _name(now: StepSoFar, place: int) -> tuple[int, str]:
    return int(now.requests.worker[place]), now.requests.ids[place]
