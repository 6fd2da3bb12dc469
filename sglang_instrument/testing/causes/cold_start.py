"""Plant a cold first step."""

from dataclasses import dataclass

from sglang_instrument.testing.causes.base import Cause
from sglang_instrument.testing.simulation.plan import StepPlan
from sglang_instrument.testing.simulation.steps import PREPROCESS


@dataclass(frozen=True)
class ColdStart(Cause):
    """In `step`, the first, engines take `factor` times as long, and preprocessing `seconds` longer.

    Workers warm up at somewhat different speeds.
    """

    factor: float = 1.3
    seconds: float = 2.0
    step: int = 1
    cause = "cold-start"
    size = "factor"

    @property
    def place(self) -> tuple[int | None, int | None]:
        """The step, and no worker."""
        return self.step, None

    def change(self, plan: StepPlan) -> None:
        """Slow the step down."""
        if plan.step == self.step:
            random = plan.random(None)
            for engine in plan.engines:
                engine.factor *= 1 + (self.factor - 1) * random.uniform(0.7, 1.3)
            for worker in plan.workers:
                worker.parts[PREPROCESS] += self.seconds * random.uniform(0.7, 1.3)
