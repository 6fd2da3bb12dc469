"""Plant a gap between steps."""

from dataclasses import dataclass

from sglang_instrument.testing.causes.base import StepCause
from sglang_instrument.testing.simulation.plan import StepPlan


@dataclass(frozen=True)
class Gap(StepCause):
    """After `step` the trainer takes `seconds` longer, in the phase `event`."""

    seconds: float = 600.0
    event: str = "trainer_update_actor"
    cause = "between-steps"
    size = "seconds"

    def plant(self, plan: StepPlan) -> None:
        """Let the trainer take longer."""
        plan.between_sec[self.event] += self.seconds
