"""Keep what is known of the processes of a run since it began."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from sglang_instrument.analysis.reading.records.fields import RequestIds, typed
from sglang_instrument.analysis.reading.records.lines import Line
from sglang_instrument.live.counting.endings import StepKey
from sglang_instrument.live.counting.parts import EventCount
from sglang_instrument.schema import CONTROL_EVENTS

#: The role and the rank of a process.
WorkerKey = tuple[str, int]

_MOST_EVENTS: Final = 512  # names of events of a process; a program may name its own
_OTHERS: Final = "..."


@dataclass(slots=True)
class Process:
    """What is known of the processes with a role and a rank, which is one at a time.

    Attributes:
        events: What ended, by name, or by name and phase where the record names one.
        tokens_of: The event whose tokens count: calls of the engine contain one another.
        requests, failed, tokens, records, lost: Counters.
        taken_back: How many requests of the engine each event took out of a running batch.
        step: A step that it logged; None for a process that knows no step.
        stems: The names of its files: those of processes.
        last_us: The time of its newest record, on its clock.
        last_at: When that was, on ours (monotonic).
        opened_us, closed_us: When it last opened a file, and when it closed its log.
        longest_silence_sec: The longest time between two of its lines within a step.
        last_record: The event and the request of its newest record.
    """

    events: dict[object, EventCount] = field(default_factory=dict)
    tokens_of: str | None = None
    requests: int = 0
    failed: int = 0
    tokens: int = 0
    records: int = 0
    lost: int = 0
    taken_back: Counter[str] = field(default_factory=Counter)
    step: StepKey | None = None
    stems: set[str] = field(default_factory=set)
    last_us: int = 0
    last_at: float = 0.0
    opened_us: int = 0
    closed_us: int = -1
    longest_silence_sec: float = 0.0
    last_record: tuple[str | None, str | None] = (None, None)

    @property
    def log_closed(self) -> bool:
        """Whether it said that it writes no more."""
        return self.closed_us >= self.opened_us

    def saw(self, at_us: int, written_sec: float) -> None:
        """Note a record of its clock's time `at_us`, written at the monotonic time `at`."""
        if at_us >= self.last_us:  # files of older steps may be read later
            self.last_us, self.last_at = at_us, written_sec

    def heard(self, lines: Sequence[Line]) -> None:
        """Note the last record among lines that are newer than all before."""
        last = next((line for line in reversed(lines) if line.event not in CONTROL_EVENTS), None)
        if last is not None:
            request_id = typed(last.extra, RequestIds).request_id
            self.last_record = last.event, None if request_id is None else str(request_id)

    def now_us(self, now: float) -> int:
        """Return what its clock shows now: a clock that jumps, or is wrong, moves no age."""
        return self.last_us + round((now - self.last_at) * 1e6)

    def seen(self, event: str, phase: str | None) -> EventCount:
        """Return the count of an event that is new; too many names are counted as one."""
        if len(self.events) >= _MOST_EVENTS:
            return self.events.setdefault(_OTHERS, EventCount(_OTHERS, None))
        return self.events.setdefault(event if phase is None else (event, phase), EventCount(event, phase))
