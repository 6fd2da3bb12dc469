"""Say what a forecast knows: the requests of earlier steps, and those of the step in progress so far."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

NOT_YET: Final = np.inf  # the end of a request that is open; the begin of a turn that did not begin
_MOST_TURNS: Final = 64  # that are told apart


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

    @classmethod
    def of(cls, rows: Iterable[tuple[str, int, float, float, Sequence[float]]]) -> "Requests":
        """Return requests from rows: id, worker, begin, end or NOT_YET, begins of the turns in order."""
        listed = list(rows)
        ids, workers, begun, ended, turns = zip(*listed, strict=True) if listed else ((), (), (), (), ())
        counts = np.fromiter(map(len, turns), np.int64, len(listed))
        turns_sec = np.full((len(listed), min(int(counts.max(initial=0)), _MOST_TURNS)), NOT_YET)
        known = (begins[:_MOST_TURNS] for begins in turns)
        turns_sec[np.arange(turns_sec.shape[1]) < counts[:, None]] = np.fromiter(
            chain.from_iterable(known), np.float64
        )
        return cls(
            ids, np.array(workers, np.int64), np.array(begun, float), np.array(ended, float), turns_sec
        )

    @property
    def lasted_sec(self) -> Floats:
        """The durations; NOT_YET of open requests."""
        return self.ended_sec - self.begun_sec

    @property
    def is_open(self) -> NDArray[np.bool_]:
        """Whether each is open."""
        return ~np.isfinite(self.ended_sec)

    @property
    def last_end_sec(self) -> float:
        """When the last of those that ended did."""
        return float(self.ended_sec[~self.is_open].max(initial=0.0))

    def chosen(self, places: Ints) -> "Requests":
        """Return the requests at these places."""
        return Requests(
            [self.ids[place] for place in places],
            self.worker[places],
            self.begun_sec[places],
            self.ended_sec[places],
            self.turns_sec[places],
        )

    def until(self, age_sec: float) -> "Requests":
        """Return what was known of them when the step was so old."""
        begun = self.chosen(np.flatnonzero(self.begun_sec <= age_sec))
        ended_sec = np.where(begun.ended_sec <= age_sec, begun.ended_sec, NOT_YET)
        turns_sec = np.where(begun.turns_sec <= age_sec, begun.turns_sec, NOT_YET)
        return Requests(begun.ids, begun.worker, begun.begun_sec, ended_sec, turns_sec)


@dataclass(frozen=True)
class PastStep:
    """A step that ended.

    Attributes:
        requests: Its requests. Those that are open, such as aborted ones, teach nothing.
        end_sec: When the step ended, in seconds after its begin.
        longest_sec: The longest spans of each event that ended in it: a few, in any order.
    """

    requests: Requests
    end_sec: float
    longest_sec: Mapping[str, Sequence[float]] = field(default_factory=dict)

    @property
    def after_sec(self) -> float:
        """From the end of the last request to the end of the step: post-processing, barrier, broadcast."""
        return max(self.end_sec - self.requests.last_end_sec, 0.0)

    def so_far(self, age_sec: float) -> "StepSoFar":
        """Return what was known of its requests when it was so old."""
        return StepSoFar(age_sec, self.requests.until(age_sec), len(self.requests.ids))


@dataclass(frozen=True)
class StepSoFar:
    """The step in progress.

    Attributes:
        age_sec: How long ago it began.
        requests: Those that have begun.
        expected: How many requests it will have; None if that is not known.
        open_events: What open requests, by their places in `requests`, are in: the event, and since when it
            has been open, in seconds.
        longest_sec: The longest spans of each event that ended in this step.
    """

    age_sec: float
    requests: Requests
    expected: int | None = None
    open_events: Mapping[int, tuple[str, float]] = field(default_factory=dict)
    longest_sec: Mapping[str, Sequence[float]] = field(default_factory=dict)
