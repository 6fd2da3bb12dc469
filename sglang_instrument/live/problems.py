"""Find what goes wrong right now: spans that do not end, processes that died, records that were lost."""

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from sglang_instrument.live.counting.counts import Counts, Process, StepKey, WorkerKey
from sglang_instrument.live.counting.parts import OpenNow, Part
from sglang_instrument.live.state import Problem, ProblemKind
from sglang_instrument.live.words import duration
from sglang_instrument.plain_text import listed
from sglang_instrument.schema import kind_of

# A span hangs if it is open for so many times as long as the longest of its phase: of 1,250 steps of made
# runs none was accused wrongly; with 2 times, 1 in 500. In a first step, long requests are still to come.
_TIMES: Final = 3.0
_UNKNOWN_SEC: Final = 300.0  # where nothing tells how long is usual
_LEAST_SEC: Final = 30.0  # a request that is younger than this is not called hanging
_SILENT_SEC: Final = 60.0  # a process with open requests writes every 2 s; file servers may delay that
_FORGET_SEC: Final = 6.0  # for so long `open_now` is believed, when all that it named may have ended
_TOLD_SEC: Final = 15.0  # an open step is told of every 2 s
_NAMED: Final = 3  # of many alike
_NEVER_SEC: Final = float("inf")
_HANG: Final = frozenset({"request", "turn", "tool", "interaction", "environment", "reward", "weights"})
_GROWS: Final = frozenset({"request", "turn"})  # the longest ones end last


@dataclass(frozen=True)
class Now:
    """What is looked at, and when.

    Attributes:
        counts: The state of the run.
        now: Monotonic seconds.
        at_us: The same moment, Unix epoch in microseconds.
        alive: By name of the process: whether it is alive; None where this host cannot tell.
        is_over: Whether no process of the run writes any more.
    """

    counts: Counts
    now: float
    at_us: int
    alive: Mapping[str, bool | None]
    is_over: bool = False

    @cached_property
    def longest_sec(self) -> dict[str, float]:
        """The longest span of each phase that ended."""
        return self.counts.longest_sec()

    @cached_property
    def limits_sec(self) -> dict[str, float]:
        """How long a span of each phase may be open before it hangs."""
        has_past = any(part.is_closed for parts in self.counts.steps.values() for part in parts.values())
        limits = {}
        for phase in _HANG:
            usual = self.longest_sec.get(phase, 0.0)
            is_known = usual > 0 and (has_past or phase not in _GROWS)
            limits[phase] = max(_TIMES * usual, 0.0 if is_known else _UNKNOWN_SEC)
        return limits

    @cached_property
    def steps(self) -> list[StepKey]:
        """The steps that are known, in the order in which they began."""
        return self.counts.in_order()

    def since_us(self, age_sec: float) -> int:
        """Return when something began that is so old, on our clock."""
        return self.at_us - round(age_sec * 1e6)


def open_now_of(part: Part, now_us: int) -> OpenNow | None:
    """Return what a worker said last of what is open, unless that may all have ended since."""
    said = part.open_now
    if said is None or part.is_closed:
        return None
    return None if said.may_be_over and now_us - said.at_us > _FORGET_SEC * 1e6 else said


def is_dead(key: WorkerKey, process: Process, part: Part | None, now: Now) -> bool:
    """Return whether a process ended without closing its log, or fell silent with requests open.

    Processes that Ray ends close no log: one of another role than "worker" counts as dead only within a step.
    """
    if process.log_closed:
        return False
    told = [now.alive.get(stem) for stem in process.stems]
    if False in told and True not in told:
        return key[0] == "worker" or (part is not None and not part.is_closed)
    if part is None or part.is_closed or True in told:
        return False
    silent_sec = now.now - process.last_at
    return silent_sec > _SILENT_SEC and open_now_of(part, process.now_us(now.now)) is not None


def problems_of(now: Now, step: StepKey | None) -> list[Problem]:
    """Return what goes wrong, the oldest first."""
    parts = now.counts.steps.get(step, {}) if step is not None else {}
    found = [*_deaths(now, step, parts), *_stuck_barrier(now, step, parts), *_losses(now)]
    for one, of_step in now.counts.steps.items():  # asynchronous trainers have several in progress
        for key, part in of_step.items():
            if not part.is_closed and (one == step or _is_told_of(now, key, part)):
                found += _hangs(now, one, key, part)
    return sorted(found, key=lambda problem: problem.since_us)


def _is_told_of(now: Now, key: WorkerKey, part: Part) -> bool:
    """Return whether a worker still says what is open in an older step."""
    now_us = now.counts.processes[key].now_us(now.now)
    return part.open_now is not None and now_us - part.open_now.at_us < _TOLD_SEC * 1e6


def _hangs(now: Now, step: StepKey | None, key: WorkerKey, part: Part) -> Iterator[Problem]:
    """Yield the spans of a worker that hang, of each request the innermost; of many, a few."""
    limits = now.limits_sec
    now_us = now.counts.processes[key].now_us(now.now)
    ages: dict[str | None, tuple[float, str, int | None, str | None]] = {}
    for (event, request_id, turn), opened in part.reported.items():
        age_sec = (now_us - opened.begun_us) / 1e6
        is_inner = request_id not in ages or age_sec < ages[request_id][0]
        if is_inner and age_sec > limits.get(_phase(now, key, event), _NEVER_SEC):
            ages[request_id] = (age_sec, event, turn, opened.frame)
    said = open_now_of(part, now_us)
    for one in said.oldest if said else ():
        age_sec = one.age_sec + (now_us - said.at_us) / 1e6 if said else 0.0
        is_old = age_sec > max(_LEAST_SEC, limits["request"])
        if is_old and one.request_id not in ages and not _has_ended(part, one.request_id):
            ages[one.request_id] = (age_sec, one.event, one.turn, None)
    oldest = sorted(ages.items(), key=lambda one: -one[1][0])
    for request_id, (age_sec, event, turn, frame) in oldest[:_NAMED]:
        longest_sec = now.longest_sec.get(_phase(now, key, event))
        sentence = _hang_sentence(event, request_id, turn, frame, longest_sec)
        yield _problem("hang", now.since_us(age_sec), key, step, sentence)
    if len(oldest) > _NAMED:
        age_sec = oldest[_NAMED][1][0]
        more = f"{len(oldest) - _NAMED} more requests hang"
        yield _problem("hang", now.since_us(age_sec), key, step, more)


def _phase(now: Now, key: WorkerKey, event: str) -> str:
    """Return the phase of an event: as its process logs it, which may name one for an event of its own."""
    seen = now.counts.processes[key].events.values()
    return next((one.phase for one in seen if one.event == event), kind_of(event).phase)


def _has_ended(part: Part, request_id: str | None) -> bool:
    known = part.requests.get(request_id or "")
    return known is not None and known.ended_us is not None


def _hang_sentence(
    event: str, request_id: str | None, turn: int | None, frame: str | None, longest: float | None
) -> str:
    of = "" if request_id is None else f" of request {request_id}"
    in_turn = "" if turn is None else f", turn {turn + 1}"
    at = f", at {frame}" if frame else ""
    usual = f"; the longest before took {duration(longest)}" if longest else ""
    return f"{event}{of}{in_turn} does not end{at}{usual}"


def _stuck_barrier(now: Now, step: StepKey | None, parts: Mapping[WorkerKey, Part]) -> Iterator[Problem]:
    """Yield a barrier at which all workers wait, so that none can free the others."""
    open_parts = {key: part for key, part in parts.items() if key[0] == "worker" and not part.is_closed}
    if len(open_parts) < 2:
        return
    waits = [barrier_sec(now, key, part) for key, part in open_parts.items()]
    usual = now.longest_sec.get("barrier", 0.0)
    known = [sec for sec in waits if sec is not None]
    if len(known) == len(waits) and min(known) > max(2 * _LEAST_SEC, _TIMES * usual):
        sentence = f"all {len(known)} workers wait at a barrier"
        yield Problem("hang", now.since_us(min(known)), None, step and step[0], sentence)


def barrier_sec(now: Now, key: WorkerKey, part: Part) -> float | None:
    """Return for how long a worker has been in a barrier, at least; None if it is in none."""
    now_us = now.counts.processes[key].now_us(now.now)
    reported = [one for (event, _, _), one in part.reported.items() if kind_of(event).phase == "barrier"]
    if reported:
        return (now_us - min(one.begun_us for one in reported)) / 1e6
    said = open_now_of(part, now_us)
    return 0.0 if said is not None and said.barriers else None


def _deaths(now: Now, step: StepKey | None, parts: Mapping[WorkerKey, Part]) -> Iterator[Problem]:
    """Yield the processes that died; where a run ended as a whole, only if it did so in a step."""
    dead = {
        key: process
        for key, process in now.counts.processes.items()
        if is_dead(key, process, parts.get(key), now)
    }
    in_step = {key: process for key, process in dead.items() if key in parts and not parts[key].is_closed}
    told = in_step if now.is_over else dead
    if now.is_over and not told:
        unclosed = {key: part for key, part in parts.items() if key[0] == "worker" and not part.is_closed}
        told = {key: now.counts.processes[key] for key in unclosed}
    if len(told) > _NAMED:
        silent_sec = max(now.now - process.last_at for process in told.values())
        sentence = f"{len(told)} processes ended in the middle of the step: {_names(told)}"
        yield Problem("death", now.since_us(silent_sec), None, step and step[0], sentence)
        return
    for key, process in told.items():
        part = parts.get(key)
        said = open_now_of(part, process.now_us(now.now)) if part is not None else None
        left = f" with {_requests(said.requests)} open" if said and said.requests else ""
        silent_sec = now.now - process.last_at
        how = "has ended" if not _is_guessed(process, now) else "writes no more; a live one writes every 2 s"
        yield _problem("death", now.since_us(silent_sec), key, step, f"the process {how}{left}")


def _requests(count: int) -> str:
    return "1 request" if count == 1 else f"{count:,} requests"


def _is_guessed(process: Process, now: Now) -> bool:
    return False not in {now.alive.get(stem) for stem in process.stems} and not now.is_over


def _losses(now: Now) -> Iterator[Problem]:
    for key, process in now.counts.processes.items():
        if process.lost:
            yield _problem("loss", now.at_us, key, process.step, f"{process.lost:,} records were lost")
    if now.counts.rejects.torn:  # one a process that was killed
        sentence = f"torn lines in the log: {now.counts.rejects.torn:,}"
        yield Problem("loss", now.at_us, None, None, sentence)


def _problem(
    kind: ProblemKind, since_us: int, key: WorkerKey, step: StepKey | None, sentence: str
) -> Problem:
    role, worker = key
    return Problem(kind, since_us, worker, step and step[0], f"{role} {worker}: {sentence}", role)


def _names(keys: Collection[WorkerKey]) -> str:
    return listed([f"{role} {worker}" for role, worker in sorted(keys)], _NAMED)
