"""Time a block and append it to the buffer: the hot path, a fraction of a microsecond.

A span is one small Struct that is its own record. C code reads its context and its start; its end appends it
to a list that the encoder's thread empties. Nothing here does I/O, logs, or takes a lock.

`_spans.pyx`, if compiled, replaces this module and must behave the same. It includes `_losses.pxi` and
`_open_spans.pxi`, counterparts of `losses.py` and `open_spans.py`; `_calls.pxi`, with `span` and `event`; and
`_blocks.pxi`, without counterpart, which lets `with` enter a span without bound methods.
"""

from _thread import get_ident
from collections.abc import Callable
from functools import partial
from time import perf_counter_ns
from types import TracebackType
from typing import Any, Final, cast

from msgspec import Struct, field

from sglang_instrument import native
from sglang_instrument.recording.measure import gpu_sync, losses, open_spans, tasks
from sglang_instrument.recording.measure.buffers import OFF as OFF
from sglang_instrument.recording.measure.buffers import Buffer as Buffer
from sglang_instrument.recording.measure.buffers import Off as Off
from sglang_instrument.recording.measure.context import CURRENT, Context, skip_left
from sglang_instrument.recording.measure.error_names import log_error_messages as log_error_messages
from sglang_instrument.recording.measure.error_names import name_error as name_error
from sglang_instrument.recording.measure.losses import dropped_records as dropped_records
from sglang_instrument.recording.measure.open_spans import OPEN as OPEN
from sglang_instrument.recording.measure.open_spans import note_closed as note_closed
from sglang_instrument.recording.measure.open_spans import note_open
from sglang_instrument.recording.measure.reentry import AGAIN, NO_EXTRA, enter_again, innermost, left_again
from sglang_instrument.recording.measure.tasks import Task, leave_task, waited_so_far
from sglang_instrument.recording.measure.values import reduce, reduce_value, text
from sglang_instrument.recording.safety.guard import reraise_if_programs_own
from sglang_instrument.recording.safety.notices import log_swallowed
from sglang_instrument.schema import WATCHED_PHASES, kind_of

running_tasks: Any = tasks.running  # asyncio's, once a buffer is in use; cached here to save a lookup
at_entry: Callable[[Any], object] | None = None  # if set, is called with each entered span
at_switch: Callable[[bool], object] | None = None  # if set, is called with whether recording is on now
buffer: Buffer = OFF


class Span(Struct, gc=False, eq=False):
    """A timed block. `start` and `end` are nanoseconds of `perf_counter_ns`; an instant event has no end.

    The arguments that patches pass come first: passing them by position costs nothing. `waited` is 0 if the
    span's block counts the waiting of its task. `given` is `extra` before the first `add`: see `reentry.py`.
    """

    event: str
    extra: dict[str, Any] | None = None
    phase: str | None = None
    waited: int | None = None
    context: Context = field(default_factory=CURRENT.get)
    thread: int = field(default_factory=get_ident)
    start: int = field(default_factory=perf_counter_ns)
    end: int = 0
    error: str | None = None
    task: Task | None = None
    device_sec: float | None = None
    entered: bool = False
    given: dict[str, Any] | None = None

    def __enter__(self) -> "Span":
        if self.entered:
            return cast("Span", enter_again(self))
        self.entered = True
        if self.context.left:
            self.context = skip_left(self.context)
        if at_entry is not None:
            _tell_entry(self)
        if running_tasks:
            try:
                enter_task(self)
            except BaseException as error:
                log_swallowed("asking for the running task", error)
        return self

    def __exit__(
        self, error: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if AGAIN and left_again(self, error, value, trace):
            return
        try:
            self.stop(error, value)
            append_to_buffer(self)
        except BaseException:
            drop_record("recording a span")

    def stop(self, error: type[BaseException] | None, value: BaseException | None) -> None:
        """Take the span's end time, and name the exception that ends the block; for all kinds of spans."""
        self.end = perf_counter_ns()
        if error is not None:
            self.error = name_error(error, value)
        if self.waited is not None:
            leave_task(self)

    async def __aenter__(self) -> "Span":
        return self.__enter__()

    async def __aexit__(
        self, error: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.__exit__(error, value, trace)

    def add(self, **extra: Any) -> None:
        """Add fields to the record; call it before the block ends."""
        block = innermost(self) if AGAIN else self
        try:
            reduced = reduce(extra)
            block.given = block.extra or NO_EXTRA if block.given is None else block.given
            block.extra = reduced if block.extra is None else {**block.extra, **reduced}
        except BaseException as error:
            log_swallowed("adding to a span", error)

    @property
    def duration_sec(self) -> float:
        """Wall time of the block in seconds; up to now while it is open."""
        block = innermost(self) if AGAIN else self
        return ((block.end or perf_counter_ns()) - block.start) / 1e9


class WatchedSpan(Span, gc=False, eq=False):
    """A span that is tracked while it is open, so that the watchdog can report one that never ends."""

    open_key: int = 0  # its key in OPEN: its id(), kept because at its end there may be no memory for an int

    def __enter__(self) -> "WatchedSpan":
        if self.entered:
            return cast("WatchedSpan", enter_again(self))
        Span.__enter__(self)
        note_open(self)
        return self

    def __exit__(
        self, error: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if AGAIN and left_again(self, error, value, trace):
            return
        Span.__exit__(self, error, value, trace)
        note_closed(self)


class SyncedSpan(WatchedSpan, gc=False, eq=False):
    """A step-level span of synchronous code: it waits for the GPU's queued work at both ends."""

    def __enter__(self) -> "SyncedSpan":
        if self.entered:
            return cast("SyncedSpan", enter_again(self))
        try:
            gpu_sync.synchronize()
            self.start = perf_counter_ns()
            WatchedSpan.__enter__(self)
        except BaseException as failure:
            log_swallowed("beginning a span", failure)
        return self

    def stop(self, error: type[BaseException] | None, value: BaseException | None) -> None:
        """Wait for the GPU, then take the span's end time."""
        try:
            if error is None:  # after an exception the trainer itself must get the GPU's error first
                gpu_sync.synchronize()
        finally:
            WatchedSpan.stop(self, error, value)


class LostSpan(Span, gc=False, eq=False):
    """Replaces a span that could not be made: it measures and records nothing."""

    def __enter__(self) -> "LostSpan":
        return self

    def __exit__(self, *exception: object) -> None:
        pass

    def add(self, **extra: Any) -> None:
        """Add nothing."""


def kind_for(event: str, phase: str | None = None, sync: bool | None = None) -> type[Span]:
    """Return the class for spans of `event`; `phase` and `sync` override the vocabulary."""
    known = kind_of(event)
    if known.synced if sync is None else sync:
        return SyncedSpan
    return WatchedSpan if (phase or known.phase) in WATCHED_PHASES else Span


def drop_record(where: str, event: str = "") -> None:
    """Count a record that could not be made or kept; call it while the exception is handled."""
    reraise_if_programs_own()
    if buffer is not OFF:
        losses.count_dropped_record(where, event)


def append_to_buffer(finished: Span) -> None:
    """Append a finished span to the buffer in use."""
    buffer.append(finished)


def begin(kind: type[Span], event: str, phase: str | None, waited: int | None) -> Span:
    """Make a span; return `LOST` if that fails."""
    try:
        return kind(event, None, phase, waited)
    except BaseException:
        drop_record("beginning a span")
        return LOST


_kinds: dict[str, type[Span]] = {}
_KINDS_LIMIT: Final = 4096  # event names; names with a request id in them must not fill the memory


def span(event: str, /, *, phase: str | None = None, **extra: Any) -> Span:
    """Time a block, as in `with span("parse", n=3) as s: ... s.add(ok=True)`; `async with` works too.

    Args:
        event: `request`, `turn`, `generate`, `tool`, `reward`, another event of the vocabulary, or your own.
        phase: Which of these an event of your own is; all are in `sglang_instrument.schema.PHASES`.
        **extra: The event's fields; `request_id=` and `turn=` replace the bound ones.

    Returns:
        The span: `.add(**extra)` adds fields, `.duration_sec` is the wall time in seconds.
    """
    try:
        if type(event) is not str:
            event = reduce_value(event)
        known = _kinds.get(event) if type(event) is str else None  # a list, for example, cannot be a name
        kind = _learn(event) if known is None else known
        if phase is not None:
            phase = text(phase)
            return kind_for(event, phase)(event, reduce(extra) if extra else None, phase=phase)
        return kind(event, reduce(extra)) if extra else kind(event)
    except BaseException:
        drop_record("beginning a span")
        return LOST


def event(name: str, /, *, phase: str | None = None, **extra: Any) -> None:
    """Record an instant event: it has no duration; keywords are those of `span()`."""
    try:
        known = name if type(name) is str else reduce_value(name)
        phase = None if phase is None else text(phase)
        record(Span(known, reduce(extra) if extra else None, phase))
    except BaseException:
        drop_record("recording an event")


def record(point: Span) -> None:
    """Append a span that was not used as a block: an instant event, or one with times set by hand."""
    if point.context.left:
        point.context = skip_left(point.context)
    if at_entry is not None:
        _tell_entry(point)
    if running_tasks:
        enter_task(point)
        point.waited = None
    append_to_buffer(point)


def enter_task(entering: Span) -> None:
    """Store in the span the asyncio task that runs now, and for how long that task has waited so far."""
    task = entering.task = tasks.look_up(entering.context.bound_by_task)
    if task is None:
        entering.waited = None
    elif task.counted_by:
        entering.waited = waited_so_far(task)
    elif entering.waited is not None:  # its block counts awaits, and no outer span does
        task.counted_by, entering.waited = id(entering), task.waited


def _tell_entry(entering: Span) -> None:
    try:
        if at_entry is not None:
            at_entry(entering)
    except BaseException as error:
        log_swallowed("beginning a span", error)


def _learn(event: str) -> type[Span]:
    kind = kind_for(event)
    if type(event) is str and len(_kinds) < _KINDS_LIMIT:
        _kinds[event] = kind
    return kind


def use_buffer(
    taking: Buffer,
    on_first_opened: Callable[[], object] | None = None,
    on_all_closed: Callable[[], object] | None = None,
) -> None:
    """Send finished spans to `taking`; call the hooks when the first watched span opens, the last ends."""
    global buffer
    was_on, buffer = buffer is not OFF, taking
    open_spans.watch(on_first_opened, on_all_closed)
    if _compiled is not None:
        _compiled.use_buffer(taking, on_first_opened, on_all_closed)
    if at_switch is not None and was_on is not (taking is not OFF):
        at_switch(not was_on)


def know_tasks(task_seen: Callable[[Any, int], object]) -> None:
    """Distinguish asyncio tasks from now on; call `task_seen(loop, thread)` for each new one with a span."""
    global running_tasks
    running_tasks = tasks.know_asyncio(task_seen)


def ignore_tasks() -> None:
    """Stop reading asyncio tasks: spans cost less, and no loop gets a heartbeat."""
    global running_tasks
    running_tasks = tasks.ignore_asyncio()


def call_at_entry(hook: Callable[[Any], object] | None) -> None:
    """Call `hook(span)` for each entered span and each instant event, on its thread; None calls nothing."""
    global at_entry
    at_entry = hook


def current_buffer() -> Buffer:
    """Return the buffer that takes finished spans now."""
    return buffer


def plain(
    event: str, phase: str | None = None, sync: bool | None = None, waited: int | None = None
) -> Callable[[], Span]:
    """Return a callable without arguments that makes spans of one event at the least cost: it is all C.

    Args:
        event: The event's name.
        phase: The phase of an event that the vocabulary does not know.
        sync: Whether to synchronise the GPU; the vocabulary gives the default.
        waited: 0 if the spans' blocks count their own awaits.
    """
    event = event if type(event) is str else reduce_value(event)
    phase = None if phase is None else text(phase)
    kind = kind_for(event, phase, sync)
    return partial(begin, kind, event, phase, waited)


_compiled = native.use_compiled(
    globals(),
    *("Span", "WatchedSpan", "SyncedSpan", "LostSpan", "drop_record", "append_to_buffer", "begin", "span"),
    *("event", "record", "call_at_entry", "dropped_records", "note_closed"),
)

LOST: Final = LostSpan("lost", start=1, end=1)
