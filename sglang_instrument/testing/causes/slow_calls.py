"""Plant slow calls: a single one, or some of a worker's."""

from dataclasses import dataclass

from sglang_instrument.testing.causes.base import WorkerCause
from sglang_instrument.testing.simulation.plan import StepPlan
from sglang_instrument.testing.simulation.workload import TOOLS, PlannedRequest


@dataclass(frozen=True)
class SlowCall(WorkerCause):
    """A single `kind` call of one request of `worker` takes `seconds` longer.

    `kind` is "engine", "tool" or "reward".
    """

    seconds: float = 30.0
    kind: str = "tool"
    cause = "slow-call"
    size = "seconds"

    @property
    def in_event(self) -> str:
        """The kind of the call."""
        return self.kind

    def plant(self, plan: StepPlan) -> None:
        """Delay the call of a random request."""
        requests = list(plan.requests_of(self.worker))
        self._delay(plan.random(self.worker).choice(requests))

    def _delay(self, request: PlannedRequest) -> None:
        turn = request.turns[0]
        if self.kind == "reward":
            request.reward_sec += self.seconds
        elif self.kind == "engine":
            turn.extra_sec += self.seconds
        elif turn.tools:
            turn.tools[0] = (turn.tools[0][0], turn.tools[0][1] + self.seconds)
        else:
            turn.tools, turn.reply_sec = [(TOOLS[0], self.seconds)], None


@dataclass(frozen=True)
class SlowCalls(WorkerCause):
    """The engine calls of `calls` requests of a worker, one each, take `seconds` longer."""

    seconds: float = 40.0
    calls: int = 8
    cause = "slow-calls"
    size = "seconds"

    def plant(self, plan: StepPlan) -> None:
        """Delay a random turn of random requests."""
        random = plan.random(self.worker)
        for worker in plan.of(self.worker):
            for request in random.sample(worker.requests, min(self.calls, len(worker.requests))):
                random.choice(request.turns).extra_sec += self.seconds
