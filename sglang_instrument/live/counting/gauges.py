"""Keep the newest gauges of each scheduler: how full it was, second by second."""

from collections import deque
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from sglang_instrument.analysis.reading.folders import Place
from sglang_instrument.analysis.reading.records.engine_fields import EngineFields, count, kv_shares

KEPT: Final = 30  # seconds of each scheduler
_MOST_SCHEDULERS: Final = 4096


class Gauge(NamedTuple):
    """How full a scheduler was at a time of its clock, Unix microseconds; None where it was not logged."""

    at_us: int
    running: int | None
    waiting: int | None
    kv_cache_running_share: float | None
    kv_cache_used_share: float | None


@dataclass(slots=True)
class Scheduler:
    """The newest gauges of a scheduler, and the role and rank of its process."""

    role: str
    worker: int
    gauges: deque[Gauge] = field(default_factory=lambda: deque(maxlen=KEPT))


class SchedulerGauges:
    """The newest gauges.

    Attributes:
        schedulers: By the name of the scheduler's file.
    """

    def __init__(self) -> None:
        self.schedulers: dict[str, Scheduler] = {}

    def note(self, place: Place, at_us: int, fields: EngineFields) -> None:
        """Take in a record."""
        scheduler = self.schedulers.get(place.stem)
        if scheduler is None:
            if len(self.schedulers) >= _MOST_SCHEDULERS:
                return
            scheduler = self.schedulers[place.stem] = Scheduler(place.role, place.worker)
        shares = kv_shares(fields)
        scheduler.gauges.append(Gauge(at_us, count(fields.running), count(fields.waiting), *shares))
