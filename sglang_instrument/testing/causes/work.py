"""Plant slow tools, rewards and interactions: of all requests, or a single call."""

from dataclasses import dataclass

from sglang_instrument.testing.causes.base import WorkerCause
from sglang_instrument.testing.simulation.plan import StepPlan
from sglang_instrument.testing.simulation.workload import TOOLS, Request


@dataclass(frozen=True)
class SlowTools(WorkerCause):
    """Every tool call takes `seconds` longer."""

    seconds: float = 5.0
    cause = "tool"
    size = "seconds"

    def plant(self, plan: StepPlan) -> None:
        """Slow the tools down."""
        for request in plan.requests_of(self.worker):
            for turn in request.turns:
                turn.tools = [(name, sec + self.seconds) for name, sec in turn.tools]


@dataclass(frozen=True)
class SlowReward(WorkerCause):
    """Every reward takes `seconds` longer."""

    seconds: float = 5.0
    cause = "reward"
    size = "seconds"

    def plant(self, plan: StepPlan) -> None:
        """Slow the rewards down."""
        for request in plan.requests_of(self.worker):
            request.reward_sec += self.seconds


@dataclass(frozen=True)
class SlowInteractions(WorkerCause):
    """Every answer of the interaction takes `seconds` longer."""

    seconds: float = 5.0
    cause = "interaction"
    size = "seconds"

    def plant(self, plan: StepPlan) -> None:
        """Slow the interactions down."""
        for request in plan.requests_of(self.worker):
            for turn in request.turns:
                if turn.reply_sec is not None:
                    turn.reply_sec += self.seconds


@dataclass(frozen=True)
class SlowCall(WorkerCause):
    """A single call of one request of `worker` takes `seconds` longer.

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

    def _delay(self, request: Request) -> None:
        turn = request.turns[0]
        if self.kind == "reward":
            request.reward_sec += self.seconds
        elif self.kind == "engine":
            turn.extra_sec += self.seconds
        elif turn.tools:
            turn.tools[0] = (turn.tools[0][0], turn.tools[0][1] + self.seconds)
        else:
            turn.tools, turn.reply_sec = [(TOOLS[0], self.seconds)], None
