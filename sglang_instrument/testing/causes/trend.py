"""Plant work that takes longer from step to step."""

from dataclasses import dataclass

from sglang_instrument.testing.causes.base import Cause
from sglang_instrument.testing.simulation.plan import StepPlan


@dataclass(frozen=True)
class Growth(Cause):
    """From each step to the next, the work of kind `kind` takes `share` of its first time longer.

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
