"""Tell which steps are finished: all of their workers have closed them, and are quiet for a moment."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from sglang_instrument.analysis.reading.folders import Place
from sglang_instrument.schema import LOG_CLOSED, STEP_CLOSED

#: A step's number, and whether it is a validation.
StepKey = tuple[int, bool]

#: The records of these roles alone are no rollout.
OTHER_ROLES: Final = frozenset({"trainer", "learner", "reward"})
_CLOSES: Final = frozenset({STEP_CLOSED, LOG_CLOSED})
MOST_STEPS: Final = 256  # of which the ends are awaited: those of a second are analysed 20 s later
_SETTLED_SEC: Final = 1.0  # by then, the file of a worker that begins late is found
_LATE_SEC: Final = 4.0  # by then, a step that goes on after its end has written more


@dataclass(slots=True)
class _StepFile:
    """One worker's file: whether it was ever closed, and whether its last record closes it."""

    role: str
    is_closed: bool = False
    ends_closed: bool = False


@dataclass(slots=True)
class _Step:
    """A step; it `changed` when a line of it was last read (monotonic seconds)."""

    begun_us: int
    lines: int = 0
    changed: float = 0.0
    files: dict[str, _StepFile] = field(default_factory=dict)


class Endings:
    """Knows how far the newest steps of a run are closed."""

    def __init__(self) -> None:
        self._steps: dict[StepKey, _Step] = {}

    def saw(self, path: str, place: Place, events: Sequence[str], begun_us: int, now: float) -> None:
        """Take in the events of lines that were added to a file; the first one began at `begun_us`."""
        if place.step is None or place.step < 0 or place.role in OTHER_ROLES:
            return
        key = (place.step, place.validate)
        step = self._steps.setdefault(key, _Step(begun_us))
        step.begun_us = min(step.begun_us, begun_us)
        step.lines += len(events)
        step.changed = now
        file = step.files.setdefault(path, _StepFile(place.role))
        file.ends_closed = events[-1] in _CLOSES
        file.is_closed = file.is_closed or not _CLOSES.isdisjoint(events)
        while len(self._steps) > MOST_STEPS:
            del self._steps[next(iter(self._steps))]

    def in_order(self) -> list[StepKey]:
        """Return the steps in the order in which they began."""
        return sorted(self._steps, key=lambda key: self._steps[key].begun_us)

    def finished(self, now: float, at_once: bool = False) -> Iterator[tuple[StepKey, int]]:
        """Yield the steps that are finished, with the number of their lines: a step may go on after its end.

        Args:
            now: Monotonic seconds.
            at_once: Do not wait until the files are quiet.
        """
        for key, step in self._steps.items():
            files = [file for file in step.files.values() if file.role == "worker"] or step.files.values()
            wanted_sec = _SETTLED_SEC if all(file.ends_closed for file in files) else _LATE_SEC
            is_quiet = at_once or now - step.changed >= wanted_sec
            if is_quiet and all(file.is_closed for file in files):
                yield key, step.lines
