"""Plan a step: what its workers and engines are going to do. A planted cause changes the plan."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from random import Random

from sglang_instrument.testing.simulation.queueing import Engine, EngineState
from sglang_instrument.testing.simulation.workload import PlannedRequest


@dataclass
class WorkerPlan:
    """What one worker does in a step.

    Attributes:
        rank: The worker.
        requests: Its requests.
        parts: Seconds of each event outside requests, in their order.
        blocks: (at, seconds): code blocks its event loop, so many seconds after the start of generation.
    """

    rank: int
    requests: list[PlannedRequest]
    parts: dict[str, float]
    blocks: list[tuple[float, float]] = field(default_factory=list)


@dataclass
class StepPlan:
    """What happens in one step and until the next begins.

    Attributes:
        step: Its number.
        index: How many steps were before it.
        workers: What each worker does.
        engine: How fast the engines are.
        engines: Their states, one a worker or a single shared one.
        between_sec: Seconds of each phase of the trainer after the rollout.
        seed: Of the run; for causes that draw something.
    """

    step: int
    index: int
    workers: list[WorkerPlan]
    engine: Engine
    engines: list[EngineState]
    between_sec: dict[str, float]
    seed: int

    def of(self, worker: int | None) -> list[WorkerPlan]:
        """Return the plan of a worker; of all if None."""
        return self.workers if worker is None else [self.workers[worker]]

    def engines_of(self, worker: int | None) -> list[EngineState]:
        """Return the state of a worker's engine; of all engines if None."""
        if worker is None or len(self.engines) == 1:
            return self.engines
        return [self.engines[worker]]

    def requests_of(self, worker: int | None) -> Iterator[PlannedRequest]:
        """Yield the requests of a worker; of all if None."""
        for plan in self.of(worker):
            yield from plan.requests

    def random(self, worker: int | None) -> Random:
        """Return random draws of a cause's own: it changes no draw of anything else."""
        return Random(f"{self.seed}/{self.step}/{worker}")  # noqa: S311 - repeatable, not secret
