"""Plant long replies: a single one, or all of a step. The engine is as fast as usual."""

from dataclasses import dataclass

from sglang_instrument.testing.causes.base import WorkerCause
from sglang_instrument.testing.simulation.plan import StepPlan


@dataclass(frozen=True)
class LongReply(WorkerCause):
    """One reply of one request has `tokens` tokens, whatever the cap."""

    tokens: int = 10_000
    cause = "long-replies"
    size = "tokens"

    def plant(self, plan: StepPlan) -> None:
        """Lengthen the last reply of a random request."""
        requests = list(plan.requests_of(self.worker))
        plan.random(self.worker).choice(requests).turns[-1].tokens = int(self.tokens)


@dataclass(frozen=True)
class LongReplies(WorkerCause):
    """All replies are `factor` times as long, whatever the cap."""

    factor: float = 4.0
    cause = "long-replies"
    size = "factor"

    def plant(self, plan: StepPlan) -> None:
        """Lengthen the replies."""
        for request in plan.requests_of(self.worker):
            for turn in request.turns:
                turn.tokens = max(1, int(turn.tokens * self.factor))
