"""Plant what concerns the whole run: work that takes longer from step to step, and a cold first step."""

from dataclasses import dataclass

from sglang_instrument.testing.causes.base import Cause
from sglang_instrument.testing.simulation.plan import StepPlan
from sglang_instrument.testing.simulation.steps import PREPROCESS


@dataclass(frozen=True)
class Growth(Cause):
    """From each step to the next, a kind of work takes `share` of its first time longer.

    `kind` is "engine", "tool" or "reward".
    """

    share: float = 0.1
    kind: str = "engine"
    cause = "trend"
    size = "share"

    @property
    def in_event(self) -> str:
        """The kind of work."""
        return self.kind

    def change(self, plan: StepPlan) -> None:
        """Slow the work down, more so in later steps."""
        factor = 1 + self.share * plan.index
        if self.kind == "engine":
            for engine in plan.engines_of(None):
                engine.factor *= factor
        for request in plan.requests_of(None):
            if self.kind == "reward":
                request.reward_sec *= factor
            elif self.kind == "tool":
                for turn in request.turns:
                    turn.tools = [(name, sec * factor) for name, sec in turn.tools]


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
