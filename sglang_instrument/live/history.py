"""Say what a forecast knows: the requests of earlier steps, and those of the step in progress so far."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

NOT_YET: Final = np.inf  # the end of a request that is open; the begin of a turn that did not begin


@dataclass(frozen=True)
class Requests:
    """The requests of a step that have begun, one element each; times are seconds after the step's begin.

    Attributes:
        ids: Their names.
        worker: The worker of each.
        begun_sec: When each began.
        ended_sec: When each ended; NOT_YET while it is open.
        turns_sec: When each turn of each began, a row a request; NOT_YET for turns that did not begin. A
            table without columns says that turns are not known.
    """

    ids: Sequence[str]
    worker: Ints
    begun_sec: Floats
    ended_sec: Floats
    turns_sec: Floats

    def until(self, age_sec: float) -> "Requests":
        """Return what was known of them when the step was so old."""
        begun = np.flatnonzero(self.begun_sec <= age_sec)
        ended_sec, turns_sec = self.ended_sec[begun], self.turns_sec[begun]
        return Requests(
            [self.ids[index] for index in begun],
            self.worker[begun],
            self.begun_sec[begun],
            np.where(ended_sec <= age_sec, ended_sec, NOT_YET),
            np.where(turns_sec <= age_sec, turns_sec, NOT_YET),
        )

    def without(self, dropped: "set[int]") -> "Requests":
        """Return the requests but for those at these places."""
        kept = np.array([index for index in range(len(self.ids)) if index not in dropped], dtype=np.int64)
        return Requests(
            [self.ids[index] for index in kept],
            self.worker[kept],
            self.begun_sec[kept],
            self.ended_sec[kept],
            self.turns_sec[kept],
        )


@dataclass(frozen=True)
class PastStep:
    """A step that ended.

    Attributes:
        requests: Its requests; those that did not end, such as aborted ones, are left out.
        end_sec: When the step ended, in seconds after its begin.
        longest_sec: The longest span of each event that ended.
    """

    requests: Requests
    end_sec: float
    longest_sec: Mapping[str, float] = field(default_factory=dict)

    @property
    def after_sec(self) -> float:
        """From the end of the last request to the end of the step: post-processing, barrier, broadcast."""
        return self.end_sec - float(self.requests.ended_sec.max(initial=0.0))


@dataclass(frozen=True)
class StepSoFar:
    """The step in progress.

    Attributes:
        age_sec: How long ago it began.
        requests: Those that have begun.
        expected: How many requests it will have; None if that is not known.
        open_events: What an open request, by its place in `requests`, is in: the event, and since when it has
            been open, in seconds.
        longest_sec: The longest span of each event that ended in this step.
    """

    age_sec: float
    requests: Requests
    expected: int | None = None
    open_events: Mapping[int, tuple[str, float]] = field(default_factory=dict)
    longest_sec: Mapping[str, float] = field(default_factory=dict)


def so_far(past: PastStep, age_sec: float) -> StepSoFar:
    """Return what was known of a step that ended when it was so old."""
    return StepSoFar(age_sec, past.requests.until(age_sec), len(past.requests.ids))
