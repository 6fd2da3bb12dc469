"""Plant code that blocks the event loop of a worker."""

from dataclasses import dataclass

from sglang_instrument.testing.causes.base import WorkerCause
from sglang_instrument.testing.simulation.plan import StepPlan


@dataclass(frozen=True)
class BlockedLoop(WorkerCause):
    """Code blocks the event loop for `seconds`, `at_sec` after the start of generation.

    The engine goes on: its calls that end meanwhile return when the loop is free again.
    """

    at_sec: float = 5.0
    seconds: float = 5.0
    cause = "blocked-loop"
    size = "seconds"

    def plant(self, plan: StepPlan) -> None:
        """Block the loop."""
        for worker in plan.of(self.worker):
            worker.blocks.append((self.at_sec, self.seconds))
