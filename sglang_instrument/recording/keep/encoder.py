"""Turn finished spans into lines: JSON objects with the keys of the schema, in its order.

Half of a record's cost is spent here, so usual records take a fast path: the part that all records of one
context share is encoded once, and times are formatted anew only when the millisecond changes.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw

from sglang_instrument import native
from sglang_instrument.recording.keep.clock import Clock
from sglang_instrument.recording.keep.line_types import (
    LONGEST_LINE,
    AnyLine,
    LineWithFields,
    LineWithoutFields,
    LogLine,
    cut,
    make_line_encodable,
)
from sglang_instrument.recording.measure.context import Context
from sglang_instrument.recording.measure.identity import process_worker
from sglang_instrument.recording.measure.scopes import Scope, scope_for
from sglang_instrument.recording.measure.spans import Span
from sglang_instrument.recording.measure.tasks import Task, thread_task
from sglang_instrument.recording.safety.guard import reraise_if_programs_own
from sglang_instrument.recording.safety.notices import log_swallowed, notice
from sglang_instrument.recording.safety.unpatched import sleep

_compiled = native.use_compiled(globals())

# Encoded at once, while other threads wait for the GIL: usually for a tenth of a millisecond.
_CHUNK: Final = 256  # spans
_SLICE: Final = 32  # lines; after long lines the encoder gives up the GIL, and encodes the next ones singly

#: A scope; lines of its file; how many lines had to be changed to be encoded at all; how many there are.
Piece = tuple[Scope, bytes, int, int]


class LineEncoder:
    """Turns spans into lines; used by one thread at a time.

    Args:
        clock: The process's clock.
        compiled: Whether the compiled encoder is used for the spans that it can encode.
    """

    def __init__(self, clock: Clock, compiled: bool = _compiled is not None) -> None:
        self._clock = clock
        self._encoder = msgspec.json.Encoder()
        self._compiled: Any = None
        if compiled:
            callbacks = self.scope_of, thread_task, self._encode_span
            self._compiled = _compiled.LineEncoder(clock.epoch_us(0), clock.timestamp, *callbacks)
        self._endings: tuple[str, ...] = ()  # the ends of timestamps, by microsecond within the millisecond
        self._offset = ""
        self._slice = _SLICE
        # Times are taken from the millisecond in which the last span ended: small numbers are fast.
        self._millisecond = (-(2**70), 0, "")

    def encode_chunk(self, spans: list[Any], begin: int) -> tuple[int, list[Piece]]:
        """Encode the next chunk of a list, small enough not to hold the GIL for long, and release its spans.

        Args:
            spans: Finished spans; encoded ones are replaced by None.
            begin: Index of the first span to encode.

        Returns:
            The index of the next chunk, and the lines. Records that cannot be encoded at all have no line; a
            notice says so.
        """
        if self._compiled is not None:
            compiled: tuple[int, list[Piece]] = self._compiled.encode_chunk(spans, begin)
            return compiled
        some = spans[begin : begin + _CHUNK]
        spans[begin : begin + len(some)] = [None] * len(some)
        return begin + len(some), self._encode_spans(some)

    def encode_all(self, spans: Iterable[Span]) -> list[Piece]:
        """Encode all spans of a sequence."""
        waiting, end, pieces = list(spans), 0, list[Piece]()
        while end < len(waiting):
            end, more = self.encode_chunk(waiting, end)
            pieces += more
        return _join(pieces)

    def _encode_spans(self, spans: list[Span]) -> list[Piece]:
        """Encode spans; if one fails, the others still get their lines."""
        try:
            return [(scope, *self.encode(made), len(made)) for scope, made in self.lines(spans).items()]
        except Exception as error:
            reraise_if_programs_own()  # `durability="line"` encodes on the program's own threads
            if len(spans) > 1:
                return [piece for span in spans for piece in self._encode_spans([span])]
            log_swallowed("encoding a record", error)
            return []

    def _encode_span(
        self, span: Span, scope: Scope, task: Task, spawned_by: int | None
    ) -> tuple[bytes, bool] | None:
        """Return the line of a span that the compiled encoder cannot encode, and whether it was changed."""
        try:
            ended_us = self._clock.epoch_us(span.end or span.start)
            line = _long_line(span, scope, task, self._clock.timestamp(ended_us), self._clock.epoch_us(0))
            line.spawned_by = spawned_by
            return self._encode_one(line)
        except Exception as error:
            log_swallowed("encoding a record", error)
            return None

    def lines(self, spans: Iterable[Span]) -> dict[Scope, list[AnyLine]]:
        """Return the lines of spans by the scope whose file they belong to."""
        offset_us = self._clock.epoch_us(0)
        made: dict[Scope, list[AnyLine]] = {}
        last, thread = None, -1
        (base_ns, base_us, prefix), endings = self._millisecond, self._endings
        for span in spans:
            context = span.context
            if context is not last:
                last = context
                scope = context.scope or self.scope_of(context)
                part = context.shared_json or self._part(context, scope)
                ids = context.extra or {}
                add = made.setdefault(scope, []).append
            task = span.task
            if task is None:
                if span.thread != thread:
                    thread = span.thread
                    of_thread = thread_task(thread)
                task = of_thread
            start, end = span.start, span.end
            microsecond = ((end or start) - base_ns) // 1000
            if not 0 <= microsecond < 1000:
                ended_us = (end or start) // 1000 + offset_us
                microsecond = ended_us % 1000
                base_us = ended_us - microsecond
                base_ns = (base_us - offset_us) * 1000
                prefix, endings = self._time(base_us)
                self._millisecond = base_ns, base_us, prefix
            if (
                not (part and task.first_logged_by is self)
                or span.error is not None
                or span.phase is not None
                or span.device_sec is not None
            ):
                line = _long_line(span, scope, task, prefix + endings[microsecond], offset_us)
                if task.first_logged_by is not self:
                    task.first_logged_by, line.spawned_by = self, task.spawned_by
                add(line)
            elif end and span.extra is None and span.waited is None:
                add(
                    LineWithoutFields(
                        prefix + endings[microsecond],
                        span.event,
                        (end - start) / 1e9,
                        part,
                        (start - base_ns) // 1000 + base_us,
                        task.number,
                    )
                )
            else:
                extra, waited = span.extra, span.waited
                add(
                    LineWithFields(
                        prefix + endings[microsecond],
                        span.event,
                        (end - start) / 1e9 if end else None,
                        ids if extra is None else {**ids, **extra},
                        scope.worker,
                        scope.step,
                        (start - base_ns) // 1000 + base_us if end else None,
                        task.number,
                        None if waited is None or not end else _active_sec(end - start, waited),
                    )
                )
        return made

    def scope_of(self, context: Context) -> Scope:
        """Return the scope that a context's records go to; unbound records go to step 0, with one notice."""
        if context.scope is not None:
            return context.scope
        scope = scope_for(context.role, context.worker, context.step, context.validate)
        if scope.role == "worker":
            notice(
                "no step bound",
                f"records without a bound step go to step_0/worker_{process_worker()}.jsonl; "
                "bind it with `with sglang_instrument.step(n):`",
            )
        return scope

    def encode(self, lines: list[AnyLine]) -> tuple[bytes, int]:
        """Return the lines as JSON, and how many of them had to be changed to be encoded at all."""
        encoded, changed, begin = [], 0, 0
        while begin < len(lines):
            end = begin + self._slice
            self._slice = min(2 * self._slice, _SLICE)
            some, changed_of_some = self._encode_slice(lines[begin:end])
            encoded.append(some)
            changed += changed_of_some
            begin = end
        return b"".join(encoded), changed

    def control(self, event: str, scope: Scope, extra: Mapping[str, Any]) -> bytes:
        """Return a control record with the current time as one line."""
        timestamp = self._clock.timestamp(self._clock.now_us())
        line = LogLine(timestamp, event, None, dict(extra), scope.worker, scope.step, validate=scope.validate)
        return self.encode([line])[0]

    def _part(self, context: Context, scope: Scope) -> Raw | None:
        """Return, and cache in the context, the part its short lines share; None if they can't be short."""
        if context.extra is None or scope.step is None or scope.validate:
            return None
        try:
            ids = self._encoder.encode(context.extra)
        except Exception:  # JSON cannot encode the request id: the slow path repairs it
            reraise_if_programs_own()
            return None
        part = Raw(ids + b',"workid":%d,"step":%d' % (scope.worker, scope.step))
        if context.scope is not None:  # else the scope changes if the process learns its number later
            context.shared_json = part
        return part

    def _time(self, millisecond_us: int) -> tuple[str, tuple[str, ...]]:
        """Return a millisecond's ISO timestamp up to its microseconds, and the 1000 possible endings."""
        text = self._clock.timestamp(millisecond_us)
        if text[26:] != self._offset or not self._endings:
            self._offset = text[26:]
            self._endings = tuple(f"{microsecond:03d}{self._offset}" for microsecond in range(1000))
        return text[:23], self._endings

    def _encode_slice(self, lines: list[AnyLine]) -> tuple[bytes, int]:
        try:
            encoded = self._encoder.encode_lines(lines)
        except Exception:  # JSON cannot encode a value of one line: find that line, keep the others
            reraise_if_programs_own()
            return self._encode_singly(lines)
        if len(encoded) > LONGEST_LINE:  # else no single line is too long
            self._slice = 1
            sleep(0)
            if max(map(len, encoded.split(b"\n"))) >= LONGEST_LINE:
                return self._encode_singly(lines)
        return encoded, 0

    def _encode_singly(self, lines: list[AnyLine]) -> tuple[bytes, int]:
        encoded, changed = bytearray(), 0
        for line in lines:
            line_bytes, was_changed = self._encode_one(line)
            encoded += line_bytes
            changed += was_changed
            if was_changed:
                sleep(0)
        return bytes(encoded), changed

    def _encode_one(self, line: AnyLine) -> tuple[bytes, bool]:
        changed = False
        try:
            encoded = self._encoder.encode_lines([line])
        except Exception:
            reraise_if_programs_own()
            make_line_encodable(line)
            encoded, changed = self._encoder.encode_lines([line]), True
        if len(encoded) > LONGEST_LINE:
            encoded, changed = self._encoder.encode_lines([cut(line)]), True
        return encoded, changed


def _join(pieces: list[Piece]) -> list[Piece]:
    """Return the pieces with those of the same scope joined."""
    by_scope: dict[Scope, list[Piece]] = {}
    for piece in pieces:
        by_scope.setdefault(piece[0], []).append(piece)
    joined: list[Piece] = []
    for scope, of_scope in by_scope.items():
        _, encoded, changed, records = zip(*of_scope, strict=True)
        joined.append((scope, b"".join(encoded), sum(changed), sum(records)))
    return joined


def _active_sec(duration_ns: int, waited_ns: int) -> float:
    return max(0, duration_ns - waited_ns) / 1e9


def _long_line(span: Span, scope: Scope, task: Task, timestamp: str, offset_us: int) -> LogLine:
    """Return the line of any span, with all its keys."""
    ids, extra = span.context.extra, span.extra
    extra = {**ids, **extra} if extra and ids else extra or ids
    line = LogLine(timestamp, span.event, None, extra, scope.worker, scope.step, None, task.number)
    if span.end:
        line.duration_sec = (span.end - span.start) / 1e9
        line.start_us = span.start // 1000 + offset_us
        if span.waited is not None:
            line.active_sec = _active_sec(span.end - span.start, span.waited)
    line.device_sec, line.error, line.phase = span.device_sec, span.error, span.phase
    line.validate = scope.validate
    return line
