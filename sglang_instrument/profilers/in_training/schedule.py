"""Profile chosen steps of a run, and slow requests, from a thread of its own beside the training."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sglang_instrument.profilers.in_training.find_engines import EnginesFound, find_engines
from sglang_instrument.profilers.in_training.plan import ProfilePlan
from sglang_instrument.profilers.in_training.run_captures import Captures, Say
from sglang_instrument.recording.safety.unpatched import RLock, Thread, original, sleep

_AT_MOST_EVERY_SEC: Final = 600.0
_GRACE_SEC: Final = 0.5  # a step whose blocks come one after the other has not ended between two of them
_LOOK_EVERY_SEC: Final = 1.0
_Queue: Final = original("queue", "SimpleQueue")
#: Returns (phase, event, age in seconds, step, worker, ids) of the spans that are open.
OpenSpans = Callable[[], list[tuple[str, str, float, int, int, Mapping[str, Any]]]]


@dataclass(frozen=True)
class _StepChange:
    """A step that begins or ends, for the thread."""

    what: str
    step: int
    worker: int
    is_open: Callable[[], bool]
    engines_found: EnginesFound | None = None


class Schedule:
    """Starts profilers when a step begins and stops them when it ends; a thread of its own does the work.

    Args:
        plan: What to profile.
        new_captures: Makes what starts and stops profilers; the thread calls it once, when it begins.
        router: Address of the servers' router, where the trainer's objects do not tell it.
        say: Is called with a key and a text when something goes wrong.
        open_spans: Returns the spans that are open.
    """

    def __init__(
        self,
        plan: ProfilePlan,
        *,
        new_captures: Callable[[], Captures],
        router: str = "",
        say: Say,
        open_spans: OpenSpans,
    ) -> None:
        self._plan, self._new_captures, self._router = plan, new_captures, router
        self._say, self._open_spans = say, open_spans
        self._tasks: queue.SimpleQueue[_StepChange | None] = _Queue()
        self._thread: Thread | None = None
        # Steps of several workers may begin at once, and one in a signal handler while the thread is started.
        self._starting = RLock()
        self._engines_found: EnginesFound | None = None
        self._last_slow = -_AT_MOST_EVERY_SEC
        self._begun: set[int] = set()

    def began(self, step: int | None, worker: int, validate: bool, is_open: Callable[[], bool]) -> None:
        """Note that the first block of a step was entered; the trainer's thread calls this."""
        try:
            if step is None or validate or (step in self._begun and self._engines_found):
                return
            wanted = step in self._plan.steps
            if not wanted and (self._engines_found or not self._plan.longer_than_sec):
                return
            engines_found = find_engines(3, self._router)
            self._engines_found = engines_found or self._engines_found
            self._start()
            if wanted and engines_found:
                self._begun.add(step)
                self._tasks.put(_StepChange("begin", step, worker, is_open, engines_found))
            elif wanted:
                self._say(
                    "profile_steps: no engine",
                    f"profile_steps: step {step} begins in a process that has no engine and knows no server; "
                    "if no other process has one, set profile_router=http://HOST:PORT",
                )
        except Exception as error:
            self._say("profile_steps", f"profile_steps: step {step} is not profiled: {error!r}")

    def ended(self, step: int | None, worker: int, validate: bool, is_open: Callable[[], bool]) -> None:
        """Note that the last block of a step was left; the trainer's thread calls this."""
        if step in self._begun and not validate and step is not None:
            self._tasks.put(_StepChange("end", step, worker, is_open))

    def stop(self, wait_sec: float) -> None:
        """End the thread, which stops the profilers that record; wait at most `wait_sec` for it."""
        thread = self._thread
        if thread is not None and thread.is_alive():
            self._tasks.put(None)
            thread.join(wait_sec)

    def restart_in_child(self) -> None:
        """Forget the parent's thread and captures, after a fork."""
        self._tasks, self._thread, self._begun = _Queue(), None, set()
        self._starting = RLock()

    def _start(self) -> None:
        with self._starting:
            if self._thread is None:
                self._thread = Thread(self._run, "sglang-instrument-profile")
                try:
                    self._thread.start()
                except RuntimeError:  # no more threads: the next step may be luckier
                    self._thread = None
                    raise

    def _run(self) -> None:
        captures = self._new_captures()
        while True:
            try:
                task = self._tasks.get(timeout=_LOOK_EVERY_SEC if self._plan.longer_than_sec else None)
            except queue.Empty:
                self._guarded(self._look, captures)
                continue
            if task is None:
                self._guarded(captures.stop_all)
                return
            if task.what == "begin" and task.engines_found is not None:
                self._begin(captures, task)
            elif task.what == "end" and self._is_over(task):
                self._guarded(captures.end, task.step)

    def _begin(self, captures: Captures, task: _StepChange) -> None:
        if self._is_over(task):  # to start now would record another step under the name of this one
            self._say(
                "profile_steps: too late",
                f"profile_steps: step {task.step} ended before its profilers were started, and is not "
                "profiled; if stopping an earlier step's profilers took too long, choose steps further apart",
            )
        else:
            self._guarded(captures.begin, task.step, task.worker, task.engines_found)

    @staticmethod
    def _is_over(task: _StepChange) -> bool:
        if task.is_open():
            return False
        sleep(_GRACE_SEC)
        return not task.is_open()

    def _look(self, captures: Captures) -> None:
        """Profile the server of a request that has been in flight for too long, now and then."""
        now = time.monotonic()
        if self._engines_found is None or now - self._last_slow < _AT_MOST_EVERY_SEC:
            return
        for phase, event, age, step, worker, ids in self._open_spans():
            if self._plan.phase in (phase, event) and age > self._plan.longer_than_sec:
                self._last_slow = now
                why = {"event": event, "age_sec": round(age, 1), **ids}
                captures.slow(step, worker, self._engines_found, why)
                return

    def _guarded(self, act: Callable[..., object], *arguments: Any) -> None:
        try:
            act(*arguments)
        except Exception as error:
            self._say("profile", f"a profiler could not be switched: {error!r}")
