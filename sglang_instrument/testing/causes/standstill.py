"""Plant an engine that stands still."""

from dataclasses import dataclass

from sglang_instrument.testing.causes.base import WorkerCause
from sglang_instrument.testing.simulation.plan import StepPlan


@dataclass(frozen=True)
class StandStill(WorkerCause):
    """The engine stands still for `seconds`, from `at_sec` after the start of generation."""

    seconds: float = 30.0
    at_sec: float = 5.0
    cause = "standstill"
    size = "seconds"

    def plant(self, plan: StepPlan) -> None:
        """Stop the engine for a while."""
        for engine in plan.engines_of(self.worker):
            engine.stalls.append((self.at_sec, self.at_sec + self.seconds))
