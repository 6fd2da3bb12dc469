"""Plant engines that are slow or stand still, for all calls or for some."""

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
