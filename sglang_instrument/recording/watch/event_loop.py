"""Detect a blocked event loop: for how long, at which line, and inside which span.

Each loop in which a span was seen gets a heartbeat, a callback that the loop runs every 25 ms. The encoder's
thread checks it from outside: if the beat is late, this thread samples the stack of the loop's thread.
"""

import contextlib
import contextvars
import sys
import time
import weakref
from _thread import get_ident
from collections.abc import Iterator
from types import CodeType
from typing import TYPE_CHECKING, Any, Final

from sglang_instrument.recording.measure import spans, tasks
from sglang_instrument.recording.measure.context import Context
from sglang_instrument.recording.measure.scopes import Scope, current_scope
from sglang_instrument.recording.measure.spans import OPEN, Span
from sglang_instrument.recording.safety.notices import log_swallowed
from sglang_instrument.recording.watch.stacks import Stack, of_thread
from sglang_instrument.recording.watch.tool_names import tool_of
from sglang_instrument.schema import LOOP_BLOCK

if TYPE_CHECKING:
    import asyncio

BEAT_SEC: Final = 0.025
LAG_SEC: Final = 0.020  # lateness from which a record is written
BLOCK_SEC: Final = 0.100  # lateness from which stacks are sampled
UNSEEN_SEC: Final = 1.0  # lateness that is a block, too, if no code of the loop was seen to run
_STILL_SEC: Final = 1.0  # lateness at which a block that lasts is first reported, then at each doubling
_QUIET_SEC: Final = 10.0  # a heartbeat stops after this long without a new task, until the next one
_FRAMES: Final = 6

#: The stacks of a loop's thread that were sampled during a block, by their frames.
_Samples = dict[tuple[str, ...], list[Stack]]

_heartbeats: dict[int, "LoopHeartbeat"] = {}
_loops: Final["weakref.WeakSet[asyncio.AbstractEventLoop]"] = weakref.WeakSet()  # that ever had a heartbeat
_wanted = False


class LoopHeartbeat:
    """The heartbeat of one running event loop."""

    def __init__(self, loop: "asyncio.AbstractEventLoop", thread: int) -> None:
        self._loop = weakref.ref(loop)
        self.thread = thread
        self.last_task_ns = time.perf_counter_ns()
        self._due_ns = 0
        self._looked_ns = self.last_task_ns  # when it was last looked at from outside
        self._cpu_sec = self._thread_cpu_sec = 0.0  # of the process, of the loop's thread, at the last beat
        self._caller: CodeType | None = None  # calls the loop's callbacks: asyncio's, or uvloop's caller
        self._seen_running = False  # seen from outside, since the last beat
        self._seen_stopped = False
        self._samples: _Samples = {}  # a beat replaces it: the encoder's thread may read it meanwhile
        self._late_samples: _Samples = {}  # seen when this thread could run again after a time without
        self._next_report_sec = _STILL_SEC
        self._blocked_span: dict[str, Any] = {}
        self._arm()

    @property
    def loop(self) -> Any:
        """The loop; None once it is gone."""
        return self._loop()

    def look(self) -> bool:
        """Check the heartbeat from another thread; sample the loop's stack if the beat is late.

        Returns:
            Whether the loop is running.
        """
        loop = self.loop
        last_ns, self._looked_ns = self._looked_ns, time.perf_counter_ns()
        if loop is None or not loop.is_running():
            self._seen_stopped = True
            return False
        self._seen_running = True
        late_ns = self._looked_ns - self._due_ns
        away = self._looked_ns - last_ns > UNSEEN_SEC * 1e9
        if late_ns > BLOCK_SEC * 1e9 and not self._seen_stopped and self._is_blocked():
            stack = of_thread(self.thread, _FRAMES)
            samples = self._late_samples if away else self._samples
            samples.setdefault(tuple(stack.frames), []).append(stack)
            self._blocked_span = self._blocked_span or _running_span(self.loop)
        return True

    def still_blocked(self) -> dict[str, Any] | None:
        """Return the fields of an `open_block` record, if the loop is blocked and a record is due."""
        late_sec = (time.perf_counter_ns() - self._due_ns) / 1e9
        samples = self._samples
        if late_sec < self._next_report_sec or not samples or self._seen_stopped:
            return None
        while self._next_report_sec <= late_sec:
            self._next_report_sec *= 2
        return {"age_sec": round(late_sec, 3), **self._sampled(samples)}

    def _sampled(self, samples: "_Samples") -> dict[str, Any]:
        """Return the most frequent stack, and the span that was open, as fields of a record."""
        same = max(samples.values(), key=len)
        return {**same[-1].fields(), "samples": len(same), **self._blocked_span}

    def _is_blocked(self) -> bool:
        """Return whether a callback runs now; else the loop waits for events, for a core or for the GIL."""
        if self._caller is None:  # before the first beat
            return sys.modules["asyncio"].current_task(self.loop) is not None
        innermost = frame = sys._current_frames().get(self.thread)
        while frame is not None and frame.f_code is not self._caller:
            frame = frame.f_back
        return frame is not None and frame is not innermost

    @property
    def dead(self) -> bool:
        """Whether the loop is closed."""
        loop = self.loop
        return loop is None or loop.is_closed()

    def _arm(self) -> None:
        self._due_ns = time.perf_counter_ns() + int(BEAT_SEC * 1e9)
        self._cpu_sec, self._thread_cpu_sec = time.process_time(), time.thread_time()
        # An empty context: the beat belongs to no request, and must keep no bound objects alive.
        self.loop.call_later(BEAT_SEC, self._beat, context=contextvars.Context())

    def _beat(self) -> None:
        try:
            self._caller = sys._getframe(1).f_code
            self._look_back()
        except BaseException as error:  # a third-party event loop, or memory has run out
            log_swallowed("watching an event loop", error)

    def _look_back(self) -> None:
        now = time.perf_counter_ns()
        late_sec = (now - self._due_ns) / 1e9
        # A loop that was stopped between two runs is not late. The encoder's thread checks every 50 ms; a
        # delay that it has not seen is not reported, unless this thread could not run meanwhile either.
        is_seen = self._seen_running or self._nobody_ran(now, late_sec)
        if late_sec > LAG_SEC and is_seen and not self._seen_stopped:
            self._report(now, late_sec)
        self._seen_running = self._seen_stopped = False
        self._samples, self._late_samples = {}, {}
        self._blocked_span = {}
        self._next_report_sec = _STILL_SEC
        if now - self.last_task_ns >= _QUIET_SEC * 1e9 and self._is_in_use():
            self.last_task_ns = now
        if _heartbeats.get(id(self.loop)) is not self:  # forgotten; another heartbeat may have replaced it
            return
        if now - self.last_task_ns < _QUIET_SEC * 1e9:
            self._arm()
        else:
            _heartbeats.pop(id(self.loop), None)

    def _nobody_ran(self, now: int, late_sec: float) -> bool:
        """Return whether the thread that looks from outside did not run while the beat was late."""
        return late_sec >= UNSEEN_SEC and now - self._looked_ns >= (late_sec - BLOCK_SEC) * 1e9

    def _is_in_use(self) -> bool:
        """Return whether a task of this loop has a watched span open."""
        loop = self.loop
        return any(
            span.task is not None and span.task.loop is not None and span.task.loop() is loop
            for span in list(OPEN.values())
        )

    def _report(self, now: int, late_sec: float) -> None:
        scope = current_scope()
        context = Context(worker=scope.worker, step=scope.step, validate=scope.validate, scope=scope)
        cpu_sec = time.process_time() - self._cpu_sec
        thread_cpu_sec = time.thread_time() - self._thread_cpu_sec
        # A call that keeps the interpreter's lock lets nobody look until it returns. It is the loop's own if
        # the loop's thread did the work of the process; else what runs now did not block the loop before.
        is_its_own = thread_cpu_sec > max(cpu_sec / 2, late_sec / 10)
        samples = self._samples or (self._late_samples if is_its_own else {})
        if samples or late_sec >= UNSEEN_SEC:
            extra = {
                "lag_sec": late_sec,
                "cpu_sec": cpu_sec,
                "thread_cpu_sec": thread_cpu_sec,
                **(self._sampled(samples) if samples else {}),
            }
            block = Span(
                LOOP_BLOCK,
                extra,
                context=context,
                thread=self.thread,
                start=self._due_ns,
                end=now,
            )
        else:
            late = {"lag_sec": late_sec}
            block = Span("event_loop_lag", late, context=context, thread=self.thread, start=now)
        spans.append_to_buffer(block)


def task_seen(loop: "asyncio.AbstractEventLoop", thread: int) -> None:
    """Give the loop of a new task a heartbeat; called once per task in which a span was seen."""
    heartbeat = _heartbeats.get(id(loop))
    if heartbeat is None or heartbeat.loop is not loop:
        _heartbeats[id(loop)] = LoopHeartbeat(loop, thread)
        _loops.add(loop)
    else:
        heartbeat.last_task_ns = time.perf_counter_ns()


def check_heartbeats() -> bool:
    """Check each loop, and return whether one runs; the encoder's thread calls this at its ticks."""
    loop_runs = False
    for key, heartbeat in list(_heartbeats.items()):
        if heartbeat.dead:
            _heartbeats.pop(key, None)
        elif heartbeat.look():
            loop_runs = True
    return loop_runs


def still_blocked() -> Iterator[tuple[Scope, dict[str, Any]]]:
    """Yield the step and the fields of an `open_block` record for each loop for which one is due."""
    for heartbeat in list(_heartbeats.values()):
        fields = heartbeat.still_blocked()
        if fields is not None:
            yield current_scope(), fields


def forget_heartbeats() -> None:
    """Let all heartbeats stop at their next beat."""
    global _wanted
    _wanted = False
    _heartbeats.clear()


def forget_loops() -> None:
    """Forget all loops, as in a forked child: the parent's loops share their wake-up socket with it."""
    forget_heartbeats()
    _loops.clear()


def restart_heartbeats() -> None:
    """Give each known loop a heartbeat again: nothing calls `task_seen` for its tasks, which have numbers."""
    global _wanted
    _wanted = True
    for loop in list(_loops):
        with contextlib.suppress(RuntimeError):  # it is closed
            loop.call_soon_threadsafe(_restart, loop, context=contextvars.Context())


def _restart(loop: "asyncio.AbstractEventLoop") -> None:
    if _wanted:
        task_seen(loop, get_ident())


def _running_span(loop: "asyncio.AbstractEventLoop") -> dict[str, Any]:
    """Return the innermost watched span of the task that runs now, as fields of a record."""
    task = sys.modules["asyncio"].current_task(loop)
    if task is None:
        return {}
    known = tasks.known(task)
    inside = [span for span in list(OPEN.values()) if known is not None and span.task is known]
    if not inside:
        return {"in_task": task.get_name()[:100]}
    span = max(inside, key=lambda span: span.start)
    tool = tool_of(span.extra)
    named = {} if tool is None else {"tool": tool}
    return {"in_span": span.event, **named, **(span.context.extra or {})}
