"""Define what a cause is: something that is planted in a run, for an analysis to find by its name."""

import inspect
import re
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar, Final, cast

from sglang_instrument.testing.simulation.plan import StepPlan

_PLACES: Final = ("step", "worker", "turn")


class Cause:
    """Something out of the ordinary in a run.

    Attributes:
        cause: The word that a finding has for it; empty if it is no finding.
        size: The name of the field that says how large it is.
    """

    cause: ClassVar[str]
    size: ClassVar[str]

    @classmethod
    def words(cls) -> frozenset[str]:
        """The words that findings have for such causes."""
        return frozenset({getattr(cls, "cause", "")} - {""})

    @property
    def place(self) -> tuple[int | None, int | None]:
        """The step and the worker of its finding; None where it concerns all."""
        return None, None

    @property
    def in_words(self) -> str:
        """What it does and where: the first sentence of its class, with its values in place of names."""
        sentence = " ".join((inspect.getdoc(type(self)) or "").partition("\n\n")[0].split())
        values = {field.name: getattr(self, field.name) for field in fields(cast("Any", self))}
        step, worker = self.place
        places = [
            *([f"step {step}"] if step is not None and "`step`" not in sentence else []),
            *([f"worker {worker}"] if worker is not None and "`worker`" not in sentence else []),
            *(["all workers"] if worker is None and "worker" in values else []),
        ]
        words = re.sub(r"`(\w+)`", lambda name: _in_words(name[1], values[name[1]]), sentence)
        return ": ".join([*([", ".join(places)] if places else []), words.rstrip(".")])

    @property
    def in_event(self) -> str | None:
        """The event, or the kind of work, that its finding names; None if any will do."""
        return None

    def change(self, plan: StepPlan) -> None:
        """Change what happens in a step, if the cause concerns it."""

    def damage(self, folder: Path) -> None:
        """Change the written run."""


def _in_words(name: str, value: Any) -> str:
    """Return "step 5", "worker 2", "30 s", "12 %" or "2.5"."""
    if name in _PLACES:
        return f"every {name}" if value is None else f"{name} {value}"
    if name == "seconds" or name.endswith("_sec"):
        return f"{value:g} s"
    if name == "share":
        return f"{100 * value:g} %"
    return f"{round(value, 2):g}" if isinstance(value, float) else str(value)


@dataclass(frozen=True)
class StepCause(Cause):
    """A cause in one step."""

    step: int

    @property
    def place(self) -> tuple[int | None, int | None]:
        """The step, and no worker."""
        return self.step, None

    def change(self, plan: StepPlan) -> None:
        """Plant it in its step."""
        if plan.step == self.step:
            self.plant(plan)

    def plant(self, plan: StepPlan) -> None:
        """Change the plan of its step."""


@dataclass(frozen=True)
class WorkerCause(StepCause):
    """A cause on one worker in one step; on all workers if `worker` is None."""

    worker: int | None

    @property
    def place(self) -> tuple[int | None, int | None]:
        """The step and the worker."""
        return self.step, self.worker


@dataclass(frozen=True)
class OneWorkerCause(StepCause):
    """A cause of a single worker; it has no size."""

    worker: int
    size = ""

    @property
    def place(self) -> tuple[int | None, int | None]:
        """The step and the worker."""
        return self.step, self.worker

    def log(self, folder: Path) -> Path:
        """Return the file of the worker in its step."""
        return folder / f"step_{self.step}" / f"worker_{self.worker}.jsonl"
