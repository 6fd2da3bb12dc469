"""Know the GPU's time of step-level spans without waiting for it, for `sync="events"`.

A CUDA event is put into the stream at both ends of a span. The finished span is held back until the second
one has come, which is asked when its thread records something else; the time between them is `device_sec`. A
span is held until its step ends, for a second at most; it goes on without if the GPU has not come that far.

No thread of ours asks: while any thread captures a graph, CUDA by default forbids every other one to ask, and
breaks the capture. A thread that queued work itself would break it anyhow.
"""

from _thread import get_ident
from collections import deque
from collections.abc import Callable
from time import perf_counter_ns
from typing import Any, Final

from msgspec import Struct

from sglang_instrument.recording.measure import gpu_sync, span_listeners
from sglang_instrument.recording.measure.context import Scope
from sglang_instrument.recording.measure.spans import OFF, Buffer, Span, SyncedSpan
from sglang_instrument.recording.safety.notices import notice, swallowed

LONGEST_HOLD_NS: Final = 1_000_000_000
_LAST_LOOK_NS: Final = 100_000  # at the end of a step, of what was queued a moment ago
_LOOK_EVERY_NS: Final = 1_000_000
_MOST_BEGUN: Final = 1_000  # spans; one that never ends stays until so many newer ones began


class _Mark(Struct, eq=False):
    """The two CUDA events of a span, in the stream in which it began."""

    stream: Any
    device: int
    began: Any
    ended: Any


class _Held(deque[tuple[Span, _Mark]]):
    """What one thread's spans wait for, and when it looks again."""

    next_look: int = 0


_NOT_BEGUN: Final[tuple[int, None]] = (0, None)
_ABANDONED: Final[list[object]] = []  # kept, for a CUDA event must not be destroyed in a forked child


class HeldBack:
    """A buffer that holds synced spans back until their GPU time is known, and passes all others on.

    Args:
        holds: Whether spans may be held; else what is not known at once never will be.
    """

    def __init__(self, holds: bool = True) -> None:
        self._taking: Buffer = OFF
        self._holds = holds
        # By id() of the span, with its start, for another one may get the id of a span that never ended.
        self._begun: dict[int, tuple[int, _Mark]] = {}
        self._held: dict[int, _Held] = {}  # by thread
        self._spare: dict[int, list[Any]] = {}  # CUDA events by device: none is destroyed on a thread of ours

    def __len__(self) -> int:
        return sum(len(held) for held in list(self._held.values()))

    def over(self, taking: Buffer) -> "HeldBack":
        """Pass spans on to `taking`; return self, the buffer to be used in its place."""
        self._taking = taking
        return self

    def on(self) -> None:
        """Mark the beginnings of spans from now on."""
        span_listeners.listen(self._span_began)

    def off(self) -> None:
        """Mark no more; what is held is passed on."""
        span_listeners.ignore(self._span_began)
        self.settle_all()

    def abandon(self) -> None:
        """Leave everything as it is, in a forked child: spans and CUDA events are the parent's."""
        span_listeners.ignore(self._span_began)
        _ABANDONED.append(self)

    def append(self, span: Span, /) -> None:
        """Hold the span back if the GPU has been asked about it, else pass it on."""
        start, mark = self._begun.pop(id(span), _NOT_BEGUN) if self._begun else _NOT_BEGUN
        if mark is None or start != span.start:
            self._taking.append(span)
            self._look_now_and_then(span)
        elif span.error is not None or not self._put_end(mark):
            self._pass_on(span, mark)  # after an exception the trainer shall meet the GPU's own error first
        else:
            self._held.setdefault(get_ident(), _Held()).append((span, mark))
            if not self._holds:
                self.settle()

    def settle(self) -> list[Scope]:
        """Look a last time at what this thread holds, for a tenth of a millisecond at most; let it all go.

        Returns:
            The steps of what was held.
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

    def settle_all(self) -> None:
        """Settle what this thread holds, and let go of what the others do."""
        self.settle()
        for held in list(self._held.values()):
            self._let_go(held)

    def let_old_go(self) -> None:
        """Pass on what was held too long: its thread records nothing more, or the GPU is far behind."""
        before = perf_counter_ns() - LONGEST_HOLD_NS
        for held in list(self._held.values()):
            self._let_go(held, before)

    def settling(self, step_ended: Callable[[], object]) -> Callable[[], None]:
        """Return `step_ended` with what this thread holds settled before it."""

        def settled() -> None:
            for scope in self.settle():
                # The encoder may have closed the step already: then it does so again, behind these records.
                scope.ended = scope.open <= 0
            step_ended()

        return settled

    def _span_began(self, span: Span) -> None:
        if isinstance(span, SyncedSpan):
            self._put_beginning(span)
        self._look_now_and_then(span)

    def _put_beginning(self, span: Span) -> None:
        try:
            cuda = gpu_sync.cuda_at_hand()
            if cuda is not None:
                at = cuda.current_device()
                mark = _Mark(cuda.current_stream(), at, self._event(cuda, at), self._event(cuda, at))
                mark.began.record(mark.stream)
                self._begun[id(span)] = (span.start, mark)
                if len(self._begun) > _MOST_BEGUN:
                    self._begun.pop(next(iter(self._begun)), None)
        except BaseException as error:
            swallowed("a CUDA event at the start of a span", error)

    def _put_end(self, mark: _Mark) -> bool:
        """Record the second event; return whether that was possible."""
        try:
            if gpu_sync.cuda_at_hand() is None:
                return False
            mark.ended.record(mark.stream)
        except BaseException as error:
            swallowed("a CUDA event at the end of a span", error)
            return False
        return True

    def _look_now_and_then(self, span: Span) -> None:
        held = self._held.get(get_ident()) if self._held else None
        now = span.end or span.start
        if held and now >= held.next_look:
            held.next_look = now + _LOOK_EVERY_NS
            self._look(held)

    def _look(self, held: _Held) -> bool:
        """Pass on what the GPU has done; return whether something is left for which to look again.

        Each span is taken out before it is looked at: the encoder's thread may let old ones go meanwhile.
        """
        try:
            if gpu_sync.cuda_at_hand() is None:
                return False
            for _ in range(len(held)):
                self._look_at(held, *held.popleft())
        except IndexError:  # all gone
            pass
        except BaseException as error:
            swallowed("asking for a CUDA event", error)
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
        """Pass on, without its GPU time, what ended `before` some nanosecond, or all."""
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
                "the GPU was not done with a span when its step ended, or a second after it: no device_sec",
            )
            self._pass_on(span, mark)

    def _pass_on(self, span: Span, mark: _Mark) -> None:
        self._give_back(mark)
        self._taking.append(span)

    def _event(self, cuda: Any, at: int) -> Any:
        try:
            return self._spare[at].pop()
        except (KeyError, IndexError):
            return cuda.Event(enable_timing=True)

    def _give_back(self, mark: _Mark) -> None:
        self._spare.setdefault(mark.device, []).extend((mark.began, mark.ended))
