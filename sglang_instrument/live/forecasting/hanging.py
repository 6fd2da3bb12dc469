"""Name the open requests that have left the range of all that ended: they will not end by themselves."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from sglang_instrument.live.forecasting.history import PastStep, StepSoFar

_BEYOND_SEC: Final = 5.0  # a follower is up to 5 s behind: it names a request within 10 s after that
_FEW_STEPS: Final = 3  # with fewer, the spread of the longest span is not known
_FEW_TIMES: Final = 2.0  # the longest: the limit then
_DEVIATIONS: Final = 3.0  # above the mean of the longest span of each step
# Where the logarithms of the steps' longest spans have such a standard deviation, nothing caps the spans: the
# next one may well be several times as long.
_UNCAPPED: Final = 0.4
_LOG_DEVIATIONS: Final = 4.0
_MOST_TIMES: Final = 3.0  # the longest: from then on it is called a hang in any case


def hanging(steps: Sequence[PastStep], now: StepSoFar) -> list[int]:
    """Return the places of the open requests that will not end.

    Their span has been open for longer than any of its event that ended, by 5 s, and by so much that chance
    explains it in few of a thousand steps. Without an earlier step, or where no such event ended in one, none
    is named.
    """
    events = {event for event, _ in now.open_events.values()}
    limits = {event: _limit_sec(event, steps, now) for event in events}
    return [place for place, (event, sec) in now.open_events.items() if sec > limits[event]]


def _limit_sec(event: str, steps: Sequence[PastStep], now: StepSoFar) -> float:
    past = np.array([step.longest_sec[event] for step in steps if event in step.longest_sec])
    if not len(past):
        return float("inf")
    longest = max(float(past.max()), now.longest_sec.get(event, 0.0))
    if len(past) < _FEW_STEPS:
        return max(longest + _BEYOND_SEC, longest * _FEW_TIMES)
    logs = np.log(past.clip(min=1e-3))
    deviation = float(logs.std(ddof=1))
    if deviation > _UNCAPPED:
        limit = float(np.exp(logs.mean() + _LOG_DEVIATIONS * deviation))
        return max(longest + _BEYOND_SEC, min(limit, _MOST_TIMES * longest))
    return max(longest + _BEYOND_SEC, float(past.mean() + _DEVIATIONS * past.std(ddof=1)))
