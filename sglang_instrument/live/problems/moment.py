"""What is looked at, and when: the input of all that finds problems."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final

from sglang_instrument.live.counting.counts import Counts, Process, StepKey, WorkerKey
from sglang_instrument.live.counting.parts import OpenReport, WorkerPart
from sglang_instrument.live.forecasting.hanging import limit_sec
from sglang_instrument.live.outside.views import View
from sglang_instrument.live.problems.problem import Problem, ProblemKind
from sglang_instrument.schema import kind_of

# A span hangs if it is open for so many times as long as the longest of its phase: of 1,250 steps of made
# runs none was accused wrongly; with 2 times, 1 in 500. In a first step, long requests are still to come.
TIMES: Final = 3.0
_UNKNOWN_SEC: Final = 300.0  # where nothing tells how long is usual
_HEARD_US: Final = 3_000_000  # a process with requests open writes every 2 s
_FORGET_SEC: Final = 6.0  # for so long `open_now` is believed, when all that it named may have ended
HANGING_PHASES: Final = frozenset(
    {"request", "turn", "tool", "interaction", "environment", "reward", "weights"}
)
_GROWING_PHASES: Final = frozenset({"request", "turn"})  # the longest ones end last


@dataclass(frozen=True)
class Now:
    """What is looked at, and when.

    Attributes:
        counts: The state of the run.
        now: Monotonic seconds.
        at_us: The same moment, Unix epoch in microseconds.
        alive: By name of the process: whether it is alive; None where this host cannot tell.
        is_over: Whether no process of the run writes any more.
        killed: The names of programs that are gone and did not close their logs.
        views: By name of the process: what this host sees of those that are silent.
    """

    counts: Counts
    now: float
    at_us: int
    alive: Mapping[str, bool | None]
    is_over: bool = False
    killed: Collection[str] = ()
    views: Mapping[str, View] = field(default_factory=dict)

    @cached_property
    def longest_sec(self) -> dict[str, float]:
        """The longest span of each phase that ended."""
        return {phase: spans_sec[-1] for phase, spans_sec in self._longest_spans.items()}

    @cached_property
    def _longest_spans(self) -> dict[str, list[float]]:
        return self.counts.longest_sec()

    @cached_property
    def has_past(self) -> bool:
        """Whether any worker has closed a step."""
        return any(part.is_closed for parts in self.counts.steps.values() for part in parts.values())

    @cached_property
    def limits_sec(self) -> dict[str, float]:
        """How long a span of each phase may be open before it hangs; the longer, the more they differ."""
        limits = {}
        for phase in HANGING_PHASES:
            usual = self.longest_sec.get(phase, 0.0)
            is_known = usual > 0 and (self.has_past or phase not in _GROWING_PHASES)
            unusual_sec = limit_sec([self._longest_spans[phase]]) if usual else 0.0
            limits[phase] = max(TIMES * usual, unusual_sec, 0.0 if is_known else _UNKNOWN_SEC)
        return limits

    @cached_property
    def steps(self) -> list[StepKey]:
        """The steps that are known, in the order in which they began."""
        return self.counts.in_order()

    def since_us(self, age_sec: float) -> int:
        """Return when something began that is so old, on our clock."""
        return self.at_us - round(age_sec * 1e6)

    def clock_us(self, key: WorkerKey) -> int:
        """Return what the clock of a process shows now."""
        return self.counts.processes[key].now_us(self.now)

    def heard_us(self, key: WorkerKey) -> int:
        """Return the time on the clock of a process up to which its words are known, about.

        While it writes nothing, what it said is open may have ended: such a span gets no older.
        """
        return min(self.clock_us(key), self.counts.processes[key].last_us + _HEARD_US)

    def phase_of(self, key: WorkerKey, event: str) -> str:
        """Return the phase of an event, as its process logs it: an event of its own may name one."""
        seen = self.counts.processes[key].events.values()
        return next((count.phase for count in seen if count.event == event), kind_of(event).phase)


def open_now_of(part: WorkerPart, now_us: int) -> OpenReport | None:
    """Return what a worker said last of what is open, unless that may all have ended since."""
    said = part.open_now
    if said is None or part.is_closed:
        return None
    return None if said.may_be_over and now_us - said.at_us > _FORGET_SEC * 1e6 else said


def last_words(process: Process) -> str:
    """Return what a process logged last, in words."""
    event, request_id = process.last_record
    if event is None:
        return "it has logged nothing"
    if request_id is None:
        return f"last it said: {event} ended"
    is_request = kind_of(event).phase == "request"
    return f"last it said: {'' if is_request else f'{event} of '}request {request_id} ended"


def problem_of(
    kind: ProblemKind, since_us: int, key: WorkerKey, step: StepKey | None, sentence: str
) -> Problem:
    """Return a problem of one process; its sentence begins with the name of the process."""
    role, worker = key
    return Problem(kind, since_us, worker, step and step[0], f"{role} {worker}: {sentence}", role)
