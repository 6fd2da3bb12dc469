"""Number steps and make request ids for a trainer that has none."""

import itertools
import os
from typing import Any, Final

from sglang_instrument.recording.measure.values import integer


class StepCount:
    """Counts the training steps of one table; a step number from the trainer takes precedence.

    A validation gets the number of the training step before it, because it shows what that step learned. A
    validation before the first step gets 0.
    """

    def __init__(self) -> None:
        self.last = 0

    def name_step(self, bound: dict[str, Any]) -> dict[str, Any]:
        """Return the ids that a run binds, with its step added."""
        step = integer(bound.get("step"))  # a table may read another type there
        if step is None:
            step = self.last if bound.get("validate") else self.last + 1
        self.last = step
        return {**bound, "step": step}


_numbers: Final = itertools.count(1)
_prefixes: Final[dict[int, str]] = {}  # by process id: a forked child gets its own


def new_request_id() -> str:
    """Return an id that is unique among all requests of all processes."""
    pid = os.getpid()
    prefix = _prefixes.get(pid) or _prefixes.setdefault(pid, os.urandom(4).hex())
    return f"{prefix}-{next(_numbers)}"


_counts: Final[dict[str, StepCount]] = {}


def step_count(table: str) -> StepCount:
    """Return the counter of a table; several functions of a trainer may share it."""
    return _counts.setdefault(table, StepCount())
