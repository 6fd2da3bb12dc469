"""Plant slow parts of a step outside of its requests."""

from dataclasses import dataclass
from typing import Final

from sglang_instrument.schema import kind_of
from sglang_instrument.testing.causes.base import WorkerCause
from sglang_instrument.testing.simulation.plan import StepPlan
from sglang_instrument.testing.simulation.steps import PREPROCESS

_OWN_WORDS: Final = frozenset({"preprocess", "broadcast", "cache"})
_OTHER: Final = "post-processing"


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
        return phase if phase in _OWN_WORDS else _OTHER

    @classmethod
    def words(cls) -> frozenset[str]:
        """The words of all parts."""
        return _OWN_WORDS | {_OTHER}

    @property
    def in_event(self) -> str:
        """The part."""
        return self.event

    def plant(self, plan: StepPlan) -> None:
        """Slow the part down."""
        for worker in plan.of(self.worker):
            worker.parts[self.event] += self.seconds
