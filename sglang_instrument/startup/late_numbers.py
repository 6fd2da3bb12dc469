"""Give trackers the numbers of steps that were known too late: under their own step, wherever a tracker can.

Most trackers take any step. W&B has rows, whose steps only grow, and drops what is logged for an earlier one.
There a later row carries the numbers, with their own step beside them as `rollout/step`, which W&B is told to
draw them over. A row has one value a name, so it carries the numbers of one step.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from sglang_instrument.recording.safety.notices import log_swallowed

PREFIX: Final = "rollout/"
OWN_STEP: Final = f"{PREFIX}step"
_MOST_STEPS: Final = 256

Numbers = Mapping[str, float]


def split(backends: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the trackers that take any step, and those that have rows, by name."""
    rows = {name: backend for name, backend in backends.items() if hasattr(backend, "define_metric")}
    return {name: backend for name, backend in backends.items() if name not in rows}, rows


class TrackerRows:
    """Which steps the rows of a tracker have carried, and which still wait for one."""

    def __init__(self) -> None:
        self._waiting: dict[int, None] = {}
        self._carried: dict[int, None] = {}
        self._last_row: int | None = None
        self._defined: set[str] = set()

    def next_for(self, row: int, known: Callable[[int], object]) -> int | None:
        """Return the step whose numbers a row carries: the first that waits and is known; None for none.

        Args:
            row: The step that the trainer logs. It waits from now on; a row carries numbers only once.
            known: Whether the numbers of a step are known.
        """
        if row not in self._carried:
            _keep(self._waiting, row)
        if row == self._last_row:
            return None
        step = next((waiting for waiting in self._waiting if known(waiting)), None)
        if step is not None:
            del self._waiting[step]
            _keep(self._carried, step)
            self._last_row = row
        return step

    def left(self, known: Callable[[int], object]) -> int:
        """Return how many steps are known and wait for a row."""
        return sum(bool(known(step)) for step in list(self._waiting))  # another thread may log meanwhile

    def define(self, backends: Mapping[str, Any]) -> None:
        """Tell each tracker once that our numbers are drawn over their own step."""
        for name, backend in backends.items():
            if name not in self._defined:
                self._defined.add(name)
                try:
                    backend.define_metric(f"{PREFIX}*", step_metric=OWN_STEP)
                except BaseException as error:
                    log_swallowed(f"naming the step of our numbers to {name}", error)


def log_late(numbers: Numbers, step: int, backends: Mapping[str, Any]) -> None:
    """Log the numbers of a step; a tracker that fails does not stop the others, or training."""
    for name, backend in backends.items():
        try:
            if hasattr(backend, "add_scalar"):
                for key, value in numbers.items():
                    backend.add_scalar(key, value, step)
            else:
                backend.log(data=dict(numbers), step=step)
        except BaseException as error:
            log_swallowed(f"logging an earlier step to {name}", error)


def with_own_step(numbers: Numbers, step: int) -> dict[str, float]:
    """Return numbers with the step that they are of."""
    return {**numbers, OWN_STEP: step}


def _keep(steps: dict[int, None], step: int) -> None:
    steps[step] = None
    while len(steps) > _MOST_STEPS:
        del steps[next(iter(steps))]
