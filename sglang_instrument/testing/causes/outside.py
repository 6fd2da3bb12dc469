"""Plant what costs time outside of requests: slow parts around the rollout, and gaps between steps."""

from dataclasses import dataclass
from typing import Final

from sglang_instrument.schema import kind_of
from sglang_instrument.testing.causes.base import StepCause, WorkerCause
from sglang_instrument.testing.simulation.plan import StepPlan
from sglang_instrument.testing.simulation.steps import PREPROCESS

_OWN_WORDS: Final = frozenset({"preprocess", "broadcast", "cache"})


@dataclass(frozen=True)
class SlowPart(WorkerCause):
    """The part `event` of the step, outside of requests, takes `seconds` longer."""

    seconds: float = 10.0
    event: str = PREPROCESS
    size = "seconds"

    @property
    def cause(self) -> str:  # type: ignore[override]  # depends on the part
        """The phase of the part; one word for all parts after the requests."""
        phase = kind_of(self.event).phase
        return phase if phase in _OWN_WORDS else "post-processing"

    @property
    def in_event(self) -> str:
        """The part."""
        return self.event

    def plant(self, plan: StepPlan) -> None:
        """Slow the part down."""
        for worker in plan.of(self.worker):
            worker.parts[self.event] += self.seconds


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
