"""Find processes that live and write nothing: what cannot speak is seen from outside."""

from collections.abc import Iterator, Mapping
from typing import Final

from sglang_instrument.live.counting.counts import Process, StepKey, WorkerKey
from sglang_instrument.live.counting.parts import WorkerPart
from sglang_instrument.live.outside.stacks import place_in
from sglang_instrument.live.outside.views import View
from sglang_instrument.live.problems.moment import TIMES, Now, last_words, open_now_of, problem_of
from sglang_instrument.live.problems.problem import Problem
from sglang_instrument.plain_text import duration

SUSPECT_SEC: Final = 3.0  # a process that is silent for so long is looked at from outside
_STOPPED_SEC: Final = 5.0  # silence of a process that is stopped or frozen
_HELD_SEC: Final = 6.0  # of one whose interpreter is held by one call, or that waits for a disk
_MORE_SEC: Final = 5.0  # so much longer than the longest silence that it broke
_OPEN_SEC: Final = 15.0  # of one with requests open, which writes every 2 s
_BUSY_SHARE: Final = 0.1  # of a core: others may want it, too
_ELSEWHERE_SEC: Final = 30.0  # of one on another host


def suspects(now: Now) -> Iterator[tuple[WorkerKey, Process, WorkerPart]]:
    """Yield the processes within an open step that have not written for a moment."""
    for parts in now.counts.steps.values():
        for key, part in parts.items():
            process = now.counts.processes[key]
            is_silent = now.now - process.last_at > SUSPECT_SEC
            if is_silent and not part.is_closed and not process.log_closed and not now.is_over:
                yield key, process, part


def idle(now: Now) -> Iterator[tuple[WorkerKey, Process]]:
    """Yield the other processes that have not written for a moment: between two steps, or in none."""
    in_step = {key for key, _, _ in suspects(now)}
    for key, process in now.counts.processes.items():
        is_silent = now.now - process.last_at > SUSPECT_SEC
        if is_silent and key not in in_step and not process.log_closed and not now.is_over:
            yield key, process


def silences(now: Now, step: StepKey | None) -> list[Problem]:
    """Return the processes that are silent for longer than one that works."""
    parts: Mapping[WorkerKey, WorkerPart] = now.counts.steps.get(step, {}) if step is not None else {}
    silent = [(key, process, part) for key, process, part in suspects(now) if parts.get(key) is part]
    whys = [(key, process, _why(now, process, part)) for key, process, part in silent]
    whys += [(key, process, _stopped(now, process)) for key, process in idle(now)]
    problems = []
    for key, process, why in whys:
        if why is not None and not _is_gone(process, now):
            sentence = f"{why}; {last_words(process)}{_advice(view_of(process, now.views))}"
            since_us = now.since_us(now.now - process.last_at)
            problems.append(problem_of("hang", since_us, key, step, sentence))
    return sorted(problems, key=lambda problem: problem.since_us)


def view_of(process: Process, views: Mapping[str, View]) -> View | None:
    """Return what this host sees of a process; None if it runs elsewhere, or was not looked at."""
    return next((views[stem] for stem in sorted(process.stems) if stem in views), None)


def _is_gone(process: Process, now: Now) -> bool:
    answers = {now.alive.get(stem) for stem in process.stems}
    return False in answers and True not in answers


def _stopped(now: Now, process: Process) -> str | None:
    """Return that a silent process is stopped or frozen, in words; None if it is not, or only briefly."""
    view = view_of(process, now.views)
    if view is None or now.now - process.last_at < _STOPPED_SEC:
        return None
    stops = {"stopped": "is stopped (SIGSTOP, or a debugger)", "frozen": "is frozen with its cgroup"}
    return f"its process {view.pid} {stops[view.doing]}" if view.doing in stops else None


def _why(now: Now, process: Process, part: WorkerPart) -> str | None:
    """Return what a process that is silent in a step does, in words; None if its silence is usual."""
    view = view_of(process, now.views)
    silent_sec, usual_sec = now.now - process.last_at, process.longest_silence_sec
    has_open = open_now_of(part, process.now_us(now.now)) is not None
    if view is None:
        if has_open or not now.has_past or silent_sec < max(_ELSEWHERE_SEC, TIMES * usual_sec):
            return None  # with requests open, `deaths` tells
        longest = f"until now it was never silent for more than {duration(max(usual_sec, 1.0))}"
        return f"its process writes nothing within the step; {longest}"
    process_id = f"its process {view.pid}"
    if view.doing in ("stopped", "frozen"):
        return _stopped(now, process)
    if silent_sec < max(_HELD_SEC, usual_sec + _MORE_SEC):
        return None
    if view.doing == "disk":
        return f"{process_id} waits for a disk (state D), and writes nothing"
    if view.interpreter_is_held:
        how = "runs on the CPU" if view.cpu_share > _BUSY_SHARE else "itself waits"
        return f"{process_id} writes nothing: one call that {how} holds its interpreter's lock"
    if has_open and silent_sec > max(_OPEN_SEC, TIMES * usual_sec):
        return f"{process_id} writes nothing, though requests are open ({view.words})"
    return None


def _advice(view: View | None) -> str:
    if view is None:
        return ""
    if view.stack:
        return f"; it stands at {place_in(view.stack)}"
    if view.doing == "stopped":
        return f"; kill -CONT {view.pid} lets it go on"
    return "" if view.doing == "frozen" else f"; py-spy dump --pid {view.pid} shows where it stands"
