"""Number the steps and name the requests of a trainer that does not."""

import itertools
import os
from typing import Any, Final

from sglang_instrument.recording.measure.values import integer


class StepCount:
    """Counts the training runs of a table's regions. A step that the trainer names is taken as it is.

    A validation belongs to the training step before it, for it shows what that one has learned; one before
    the first is at step 0.
    """

    def __init__(self) -> None:
        self.last = 0

    def name_step(self, bound: dict[str, Any]) -> dict[str, Any]:
        """Return what a run binds, with its step."""
        step = integer(bound.get("step"))  # a table may find something else there
        if step is None:
            step = self.last if bound.get("validate") else self.last + 1
        self.last = step
        return {**bound, "step": step}


_numbers: Final = itertools.count(1)
_prefixes: Final[dict[int, str]] = {}  # by process: a forked child has one of its own


def new_request_id() -> str:
    """Return an id that no other request of this run has, in any process."""
    pid = os.getpid()
    prefix = _prefixes.get(pid) or _prefixes.setdefault(pid, os.urandom(4).hex())
    return f"{prefix}-{next(_numbers)}"


_counts: Final[dict[str, StepCount]] = {}


def step_count(table: str) -> StepCount:
    """Return the one count of a table: a trainer may reach its steps through several functions."""
    return _counts.setdefault(table, StepCount())
