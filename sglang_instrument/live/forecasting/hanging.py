"""Name the open requests that have left the range of all that ended: they will not end by themselves."""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from sglang_instrument.live.forecasting.history import PastStep, StepSoFar

_BEYOND_SEC: Final = 5.0  # a follower is up to 5 s behind: it names a request within 10 s after that
_FEW_STEPS: Final = 3  # with fewer, how much steps differ is not known
_FEW_TIMES: Final = 2.0  # the longest: the least limit then
_DEVIATIONS: Final = 2.0
_CHANCE: Final = 0.002  # that the longest span of a step exceeds the limit, and ends
_EULER: Final = 0.5772  # of the mean of Gumbel's distribution
_LEAST_SEC: Final = 1e-3  # the logarithms of shorter spans are of no interest


def hanging(steps: Sequence[PastStep], now: StepSoFar) -> list[int]:
    """Return the places of the open requests that will not end: their span is open beyond `limit_sec`.

    Without an earlier step, or where no such event ended in one, none is named.
    """
    limits = {event: limit_of(event, steps, now.longest_sec) for event, _ in now.open_events.values()}
    return [place for place, (event, sec) in now.open_events.items() if sec > limits[event]]


def limit_of(call: str, steps: Sequence[PastStep], longest_sec: Mapping[str, Sequence[float]]) -> float:
    """Return `limit_sec` of a call; `longest_sec` has the longest spans of the step in progress.

    A call of a tool, "EVENT TOOL", is also a call of EVENT, of which more is known: the lower limit counts.
    """
    limits = [float("inf")]
    for name in {call, call.partition(" ")[0]}:
        past = [step.longest_sec[name] for step in steps if step.longest_sec.get(name)]
        limits += [limit_sec(past, longest_sec.get(name, ()))] if past else []
    return min(limits)


def limit_sec(past: Sequence[Sequence[float]], now: Sequence[float] = ()) -> float:
    """Return how long a span may be open before it will not end.

    That is the longest that ended and 5 s, or more, as far as that run's spans are spread:

    - A factor times the longest, which follows from how far the longest spans of each step are apart. In a
      tail that falls as `x ** (-1 / g)`, `i` times the logarithm of the i-th longest span by the next one
      has the mean g, whatever i is (Renyi); the estimate is raised by its standard error. The logarithm of a
      step's longest span then has Gumbel's distribution of the scale g: the longest of m steps lies about
      `g (ln m + 0.58)` above its location, and a step exceeds `g ln(1 / p)` with the chance p.
    - The mean of the logarithms of the steps' longest spans and two standard deviations.

    Args:
        past: The longest spans of each earlier step, in seconds; at least one step with one span.
        now: Those that ended in the step in progress.
    """
    longest = np.array([max(spans_sec) for spans_sec in past])
    longest_sec = max([float(longest.max()), *now])
    apart = np.concatenate([_apart(spans_sec) for spans_sec in past])
    tail = float(apart.mean() * (1 + len(apart) ** -0.5)) if len(apart) else 0.0
    factor = float(np.exp(tail * (-np.log(_CHANCE) - np.log(len(past)) - _EULER)))
    return max(longest_sec + _BEYOND_SEC, longest_sec * factor, _limit_of_steps(longest))


def _limit_of_steps(longest: np.ndarray[tuple[int], np.dtype[np.float64]]) -> float:
    """Return how long a span may be by the longest spans of the steps alone."""
    if len(longest) < _FEW_STEPS:
        return float(longest.max()) * _FEW_TIMES
    logs = np.log(longest.clip(min=_LEAST_SEC))
    return float(np.exp(logs.mean() + _DEVIATIONS * logs.std(ddof=1)))


def _apart(spans_sec: Sequence[float]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    logs = np.log(np.sort(np.asarray(spans_sec, float))[::-1].clip(min=_LEAST_SEC))
    return np.asarray(-np.diff(logs) * np.arange(1, len(logs)))
