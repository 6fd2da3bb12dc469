"""Define what a cause is: something that is planted in a run, for an analysis to find by its name."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from sglang_instrument.testing.simulation.plan import StepPlan


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
    def in_event(self) -> str | None:
        """The event, or the kind of work, that its finding names; None if any will do."""
        return None

    def change(self, plan: StepPlan) -> None:
        """Change what happens in a step, if the cause concerns it."""

    def damage(self, folder: Path) -> None:
        """Change the written run."""


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
