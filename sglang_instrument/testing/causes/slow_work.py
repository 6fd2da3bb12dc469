"""Plant engines, tools, rewards and interactions that are slow in all their calls."""

from dataclasses import dataclass

from sglang_instrument.testing.causes.base import WorkerCause
from sglang_instrument.testing.simulation.plan import StepPlan


@dataclass(frozen=True)
class SlowEngine(WorkerCause):
    """The engine takes `factor` times as long."""

    factor: float = 2.0
    cause = "engine"
    size = "factor"

    def plant(self, plan: StepPlan) -> None:
        """Slow the engine down."""
        for engine in plan.engines_of(self.worker):
            engine.factor *= self.factor


@dataclass(frozen=True)
class TwoSlowEngines(SlowEngine):
    """The engines of `worker` and of the next take `factor` times as long."""

    def plant(self, plan: StepPlan) -> None:
        """Slow both engines down."""
        if self.worker is not None:
            for worker in (self.worker, self.worker + 1):
                for engine in plan.engines_of(worker):
                    engine.factor *= self.factor


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
