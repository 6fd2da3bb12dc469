"""Profile chosen steps of a run, and slow requests, from a thread of its own beside the training."""

from __future__ import annotations

import queue
import re
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sglang_instrument.errors import ConfigError
from sglang_instrument.profiling.options import DEFAULT_STEPS_IN_A_RUN, ProfileOptions, numbers, read_options
from sglang_instrument.profiling.reached import Reached, reached_from

_AT_MOST_EVERY_SEC: Final = 600.0
_GRACE_SEC: Final = 0.5  # a step whose blocks come one after the other has not ended between two of them
_LOOK_EVERY_SEC: Final = 1.0
_WHEN: Final = re.compile(r"\s*(\w+)\s*>\s*([0-9.]+)\s*(s|sec|min)?\s*")

#: Called with a key and a text when something goes wrong; with a step, a worker and the fields of an event.
Say = Callable[[str, str], object]
Note = Callable[[int, int, Mapping[str, Any]], object]


@dataclass(frozen=True)
class Plan:
    """What a run wants profiled.

    Attributes:
        steps: Training steps.
        workers: Of rollout workers with engines of their own, and of servers; None is all of them.
        options: What to record.
        phase: Of spans that are watched for their age, such as request; or the name of an event.
        longer_than_sec: The age. 0 watches nothing.
    """

    steps: frozenset[int]
    workers: frozenset[int] | None
    options: ProfileOptions
    phase: str = ""
    longer_than_sec: float = 0.0


def read_plan(steps: str, workers: str, options: str, when: str, output_dir: str) -> Plan | None:
    """Return the plan of these settings; None if they ask for nothing.

    Raises:
        ConfigError: One of them cannot be read.
    """
    if not steps.strip() and not when.strip():
        return None
    base = ProfileOptions(num_steps=DEFAULT_STEPS_IN_A_RUN, output_dir=output_dir)
    phase, longer_than_sec = _when(when) if when.strip() else ("", 0.0)
    every = workers.strip() in ("", "all")
    return Plan(
        _numbers("profile_steps", steps),
        None if every else _numbers("profile_workers", workers),
        read_options(options, base),
        phase,
        longer_than_sec,
    )


def _numbers(setting: str, text: str) -> frozenset[int]:
    try:
        return numbers(text)
    except ValueError as error:
        raise ConfigError(f"{setting}: {error}") from None


def _when(text: str) -> tuple[str, float]:
    match = _WHEN.fullmatch(text)
    if match is None or float(match[2]) <= 0:
        raise ConfigError(f"profile_when: {text!r} must be like request>60s")
    return match[1], float(match[2]) * (60 if match[3] == "min" else 1)


@dataclass(frozen=True)
class _Task:
    """What the thread shall do: begin or end a step, or look at a slow span."""

    what: str
    step: int
    worker: int
    is_open: Callable[[], bool]
    reached: Reached | None = None


class Schedule:
    """Starts profilers when a step begins and stops them when it ends; nothing of it is felt by training.

    Args:
        plan: What to profile.
        experiment: Begins the ids of the captures.
        run_id: And folder: of the run; in it the captures are claimed and noted.
        router: Of the servers, where the trainer's objects do not tell.
        say: Says what goes wrong, once.
        note: Logs an event in the file of a step.
        open_spans: Returns (phase, event, age in seconds, step, worker, ids) of spans that are open.
    """

    def __init__(
        self,
        plan: Plan,
        *,
        experiment: str,
        run_id: str,
        folder: Path,
        router: str = "",
        say: Say,
        note: Note,
        open_spans: Callable[[], list[tuple[str, str, float, int, int, Mapping[str, Any]]]],
    ) -> None:
        self._plan, self._say, self._open_spans = plan, say, open_spans
        self._ids = (experiment, run_id, folder, router, note)
        self._tasks: queue.SimpleQueue[_Task | None] = queue.SimpleQueue()
        self._thread: threading.Thread | None = None
        # Steps of several workers may begin at once, and one in a signal handler while the thread is started.
        self._starting = threading.RLock()
        self._reached: Reached | None = None
        self._last_slow = -_AT_MOST_EVERY_SEC
        self._begun: set[int] = set()

    def began(self, step: int | None, worker: int, validate: bool, is_open: Callable[[], bool]) -> None:
        """Be told that the first block of a step was entered; called by the trainer's thread."""
        try:
            if step is None or validate or (step in self._begun and self._reached):
                return
            wanted = step in self._plan.steps
            if not wanted and (self._reached or not self._plan.longer_than_sec):
                return
            reached = reached_from(3, self._ids[3])
            self._reached = reached or self._reached
            self._start()
            if wanted and reached:
                self._begun.add(step)
                self._tasks.put(_Task("begin", step, worker, is_open, reached))
            elif wanted:
                self._say(
                    "profile_steps: no engine",
                    f"profile_steps: step {step} begins in a process that has no engine and knows no server; "
                    "if no other process has one, set profile_router=http://HOST:PORT",
                )
        except Exception as error:
            self._say("profile_steps", f"profile_steps: step {step} is not profiled: {error!r}")

    def ended(self, step: int | None, worker: int, validate: bool, is_open: Callable[[], bool]) -> None:
        """Be told that the last block of a step was left; called by the trainer's thread."""
        if step in self._begun and not validate and step is not None:
            self._tasks.put(_Task("end", step, worker, is_open))

    def stop(self, wait_sec: float) -> None:
        """End the thread; a profiler that records is stopped, which is waited for so long at most."""
        thread = self._thread
        if thread is not None and thread.is_alive():
            self._tasks.put(None)
            thread.join(wait_sec)

    def restart_in_child(self) -> None:
        """Forget the parent's thread and captures, after a fork."""
        self._tasks, self._thread, self._begun = queue.SimpleQueue(), None, set()
        self._starting = threading.RLock()

    def _start(self) -> None:
        with self._starting:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="sglang-instrument-profile", daemon=True
                )
                try:
                    self._thread.start()
                except RuntimeError:  # no more threads: the next step may be luckier
                    self._thread = None
                    raise

    def _run(self) -> None:
        from sglang_instrument.profiling.recorded import Captures

        experiment, run_id, folder, router, note = self._ids
        captures = Captures(self._plan, experiment, run_id, folder, router, self._say, note)
        while True:
            try:
                task = self._tasks.get(timeout=_LOOK_EVERY_SEC if self._plan.longer_than_sec else None)
            except queue.Empty:
                self._guarded(self._look, captures)
                continue
            if task is None:
                self._guarded(captures.stop_all)
                return
            if task.what == "begin" and task.reached is not None:
                self._begin(captures, task)
            elif task.what == "end" and self._is_over(task):
                self._guarded(captures.end, task.step)

    def _begin(self, captures: Any, task: _Task) -> None:
        if self._is_over(task):  # to start now would record another step under the name of this one
            self._say(
                "profile_steps: too late",
                f"profile_steps: step {task.step} was over before its profilers could be started, and is not "
                "profiled; where those of a step before took long to stop, choose steps further apart",
            )
        else:
            self._guarded(captures.begin, task.step, task.worker, task.reached)

    @staticmethod
    def _is_over(task: _Task) -> bool:
        if task.is_open():
            return False
        time.sleep(_GRACE_SEC)
        return not task.is_open()

    def _look(self, captures: Any) -> None:
        """Profile the server of a request that has been in flight for too long, now and then."""
        now = time.monotonic()
        if self._reached is None or now - self._last_slow < _AT_MOST_EVERY_SEC:
            return
        for phase, event, age, step, worker, ids in self._open_spans():
            if self._plan.phase in (phase, event) and age > self._plan.longer_than_sec:
                self._last_slow = now
                captures.slow(step, worker, self._reached, {"event": event, "age_sec": round(age, 1), **ids})
                return

    def _guarded(self, act: Callable[..., object], *arguments: Any) -> None:
        try:
            act(*arguments)
        except Exception as error:
            self._say("profile", f"a profiler could not be switched: {error!r}")
