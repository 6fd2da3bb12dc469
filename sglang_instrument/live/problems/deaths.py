"""Find processes that ended without closing their logs, or fell silent on another host with requests open."""

from collections.abc import Collection, Iterator
from typing import Final

from sglang_instrument.live.counting.counts import Process, StepKey, WorkerKey
from sglang_instrument.live.counting.parts import WorkerPart
from sglang_instrument.live.problems.moment import Now, last_words, open_now_of, problem_of
from sglang_instrument.live.problems.problem import Problem
from sglang_instrument.plain_text import listed

_SILENT_SEC: Final = 30.0  # a process with open requests writes every 2 s; file servers may delay that
_NAMED: Final = 3  # of many alike


def is_dead(key: WorkerKey, process: Process, part: WorkerPart | None, now: Now) -> bool:
    """Return whether a process ended without closing its log, or fell silent with requests open.

    Processes that Ray ends close no log: one of another role than "worker" counts as dead only within a step.
    """
    if process.log_closed:
        return False
    answers = [now.alive.get(stem) for stem in process.stems]
    if False in answers and True not in answers:
        return key[0] == "worker" or (part is not None and not part.is_closed) or _is_missed(key, now)
    if part is None or part.is_closed or True in answers:
        return False
    silent_sec = now.now - process.last_at
    return silent_sec > _SILENT_SEC and open_now_of(part, process.now_us(now.now)) is not None


def _is_missed(key: WorkerKey, now: Now) -> bool:
    """Return whether requests wait for an engine's process that is gone, while its workers live."""
    if key[0] not in ("server", "scheduler") or now.is_over or not now.steps:
        return False
    parts = now.counts.steps[now.steps[-1]]
    said = [open_now_of(part, now.clock_us(worker)) for worker, part in parts.items()]
    return any(open_now is not None and open_now.requests for open_now in said)


def deaths(now: Now, step: StepKey | None) -> Iterator[Problem]:
    """Yield the processes that died.

    Where a run ended as a whole, only those that did so in a step, and programs that were killed.
    """
    parts = now.counts.steps.get(step, {}) if step is not None else {}
    dead = {
        key: process
        for key, process in now.counts.processes.items()
        if is_dead(key, process, parts.get(key), now)
    }
    certain = {
        key: process
        for key, process in dead.items()
        if (key in parts and not parts[key].is_closed) or not process.stems.isdisjoint(now.killed)
    }
    named = certain if now.is_over else dead
    if now.is_over and not named:
        unclosed = {key: part for key, part in parts.items() if key[0] == "worker" and not part.is_closed}
        named = {key: now.counts.processes[key] for key in unclosed}
    if len(named) > _NAMED:
        silent_sec = max(now.now - process.last_at for process in named.values())
        sentence = f"{len(named)} processes ended and did not close their logs: {_names(named)}"
        yield Problem("death", now.since_us(silent_sec), None, step and step[0], sentence)
        return
    for key, process in named.items():
        sentence = f"the process {_how(process, now)}{_left(parts.get(key), process, now)}"
        yield problem_of("death", now.since_us(now.now - process.last_at), key, step, sentence)


def _how(process: Process, now: Now) -> str:
    is_certain = now.is_over or False in {now.alive.get(stem) for stem in process.stems}
    return "has ended" if is_certain else "writes no more; a live one writes every 2 s"


def _left(part: WorkerPart | None, process: Process, now: Now) -> str:
    """Return what a process left open: how many requests, and in which event the oldest of them was."""
    said = None if part is None else open_now_of(part, process.now_us(now.now))
    if said is None or said.may_be_over:
        return f"; {last_words(process)}"
    first = next((request for request in said.oldest if request.request_id is not None), None)
    oldest = ""
    if first is not None:
        tool = "" if first.tool is None else f" {first.tool}"
        oldest = f"; the oldest, {first.request_id}, was in {first.event}{tool}"
    return f" with {_requests(said.requests)} open{oldest}"


def _requests(count: int) -> str:
    return "1 request" if count == 1 else f"{count:,} requests"


def _names(keys: Collection[WorkerKey]) -> str:
    return listed([f"{role} {worker}" for role, worker in sorted(keys)], _NAMED)
