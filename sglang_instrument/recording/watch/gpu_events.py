"""Measure the GPU's time of step-level spans without waiting for the GPU, for `sync="events"`.

A CUDA event is recorded in the stream at both ends of a span. The finished span is held back until the second
event has completed; its thread queries that when it records something else. The time between both events is
`device_sec`. A span is held until its step ends, at most for a second; then it goes on without `device_sec`.

Threads of this package query no events; those of the program do, and break no capture of a graph by it.
"""

from _thread import get_ident
from collections import deque
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, Final

from msgspec import Struct

from sglang_instrument.recording.measure import gpu_sync
from sglang_instrument.recording.measure.scopes import Scope
from sglang_instrument.recording.measure.spans import OFF, Buffer, Span, SyncedSpan
from sglang_instrument.recording.safety.captures import BesideCaptures
from sglang_instrument.recording.safety.notices import log_swallowed, notice
from sglang_instrument.recording.watch import span_listeners

LONGEST_HOLD_NS: Final = 1_000_000_000
_LAST_LOOK_NS: Final = 100_000  # longest wait at the end of a step, for work that was queued just before
_LOOK_EVERY_NS: Final = 1_000_000
_MOST_BEGUN: Final = 1_000  # spans; one that never ends is dropped after this many newer ones


class _Mark(Struct, eq=False):
    """The two CUDA events of a span, in the stream in which it began."""

    stream: Any
    device: int
    began: Any
    ended: Any


class _Held(deque[tuple[Span, _Mark]]):
    """The held spans of one thread, and when the thread queries their events again."""

    next_look: int = 0


_NOT_BEGUN: Final[tuple[int, None]] = (0, None)
_ABANDONED: Final[list[object]] = []  # kept alive: a CUDA event must not be destroyed in a forked child


class HeldBack:
    """A buffer that holds synced spans back until their GPU time is known, and passes all others on.

    Args:
        holds: Whether spans may be held; else a span whose GPU time is not known at its end has none.
    """

    def __init__(self, holds: bool = True) -> None:
        self._taking: Buffer = OFF
        self._holds = holds
        # By id() of the span, with its start: a new span may get the id of one that never ended.
        self._begun: dict[int, tuple[int, _Mark]] = {}
        self._held: dict[int, _Held] = {}  # by thread
        self._spare: dict[int, list[Any]] = {}  # CUDA events by device: none is destroyed on a thread of ours

    def __len__(self) -> int:
        return sum(len(held) for held in list(self._held.values()))

    def wrap(self, taking: Buffer) -> "HeldBack":
        """Pass spans on to `taking`; return self, the buffer to be used in its place."""
        self._taking = taking
        return self

    def on(self) -> None:
        """Record a CUDA event at the start of each synced span from now on."""
        span_listeners.listen(self._span_began)

    def off(self) -> None:
        """Record no more CUDA events; pass all held spans on."""
        span_listeners.ignore(self._span_began)
        self.release_all()

    def abandon(self) -> None:
        """Leave everything as it is, in a forked child: spans and CUDA events are the parent's."""
        span_listeners.ignore(self._span_began)
        _ABANDONED.append(self)

    def append(self, span: Span, /) -> None:
        """Hold the span back if it has a CUDA event, else pass it on."""
        start, mark = self._begun.pop(id(span), _NOT_BEGUN) if self._begun else _NOT_BEGUN
        if mark is None or start != span.start:
            self._taking.append(span)
            self._look_now_and_then(span)
        elif span.error is not None or not self._put_end(mark):
            self._pass_on(span, mark)  # after an exception the trainer itself must get the GPU's error first
        else:
            self._held.setdefault(get_ident(), _Held()).append((span, mark))
            if not self._holds:
                self.release_finished()

    def release_finished(self) -> list[Scope]:
        """Query this thread's held spans for at most a tenth of a millisecond; then pass them all on.

        Returns:
            The scopes of these spans.
        """
        held = self._held.get(get_ident())
        if not held:
            return []
        scopes = [span.context.scope for span, _ in list(held)]
        ends = perf_counter_ns() + _LAST_LOOK_NS
        while self._look(held) and perf_counter_ns() < ends:
            pass
        self._let_go(held)
        return [scope for scope in scopes if scope is not None]

    def release_all(self) -> None:
        """Release this thread's finished spans, and pass on those of other threads without querying."""
        self.release_finished()
        for held in list(self._held.values()):
            self._let_go(held)

    def let_old_go(self) -> None:
        """Pass on spans that were held too long: their thread records no more, or the GPU is far behind."""
        before = perf_counter_ns() - LONGEST_HOLD_NS
        for held in list(self._held.values()):
            self._let_go(held, before)

    def releasing(self, step_ended: Callable[[], object]) -> Callable[[], None]:
        """Return a function that releases this thread's spans, and then calls `step_ended`."""

        def released() -> None:
            for scope in self.release_finished():
                # The encoder's thread may have closed the step already: it does so again after these records.
                scope.ended = scope.open <= 0
            step_ended()

        return released

    def _span_began(self, span: Span) -> None:
        if isinstance(span, SyncedSpan):
            self._put_beginning(span)
        self._look_now_and_then(span)

    def _put_beginning(self, span: Span) -> None:
        try:
            cuda = gpu_sync.cuda_at_hand()
            if cuda is not None:
                device = cuda.current_device()
                mark = _Mark(
                    cuda.current_stream(), device, self._event(cuda, device), self._event(cuda, device)
                )
                mark.began.record(mark.stream)
                self._begun[id(span)] = (span.start, mark)
                if len(self._begun) > _MOST_BEGUN:
                    self._begun.pop(next(iter(self._begun)), None)
        except BaseException as error:
            log_swallowed("a CUDA event at the start of a span", error)

    def _put_end(self, mark: _Mark) -> bool:
        """Record the second event; return whether that was possible."""
        try:
            if gpu_sync.cuda_at_hand() is None:
                return False
            mark.ended.record(mark.stream)
        except BaseException as error:
            log_swallowed("a CUDA event at the end of a span", error)
            return False
        return True

    def _look_now_and_then(self, span: Span) -> None:
        held = self._held.get(get_ident()) if self._held else None
        now = span.end or span.start
        if held and now >= held.next_look:
            held.next_look = now + _LOOK_EVERY_NS
            self._look(held)

    def _look(self, held: _Held) -> bool:
        """Pass on the spans that the GPU has finished; return whether to query the others again.

        Each span is taken out before its query: the encoder's thread may pass on old ones meanwhile.
        """
        try:
            if gpu_sync.cuda_at_hand() is None:
                return False
            with BesideCaptures():
                for _ in range(len(held)):
                    self._look_at(held, *held.popleft())
        except IndexError:  # the encoder's thread has taken the rest
            pass
        except BaseException as error:
            log_swallowed("asking for a CUDA event", error)
            return False
        return bool(held)

    def _look_at(self, held: _Held, span: Any, mark: _Mark) -> None:
        try:
            has_come = mark.ended.query()
            if has_come:
                span.device_sec = mark.began.elapsed_time(mark.ended) / 1e3
        except BaseException:
            self._pass_on(span, mark)
            raise
        if has_come:
            self._pass_on(span, mark)
        else:
            held.append((span, mark))

    def _let_go(self, held: _Held, before: int | None = None) -> None:
        """Pass on, without `device_sec`, the spans that ended before time `before` in ns; None means all."""
        for _ in range(len(held)):
            try:
                span, mark = held.popleft()
            except IndexError:
                return
            if before is not None and span.end >= before:
                held.append((span, mark))
                continue
            notice(
                "device_sec unknown",
                "the GPU had not finished a span when its step ended, or one second later: no device_sec",
            )
            self._pass_on(span, mark)

    def _pass_on(self, span: Span, mark: _Mark) -> None:
        self._give_back(mark)
        self._taking.append(span)

    def _event(self, cuda: Any, device: int) -> Any:
        try:
            return self._spare[device].pop()
        except (KeyError, IndexError):
            return cuda.Event(enable_timing=True)

    def _give_back(self, mark: _Mark) -> None:
        self._spare.setdefault(mark.device, []).extend((mark.began, mark.ended))
