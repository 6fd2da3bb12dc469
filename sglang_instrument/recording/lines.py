"""Turn finished spans into lines: JSON objects with the keys, and in the order, of the schema.

Half of all that a record costs is spent here, so the usual record takes a short way: what all records of one
context have in common is encoded once, and times are formatted anew only when the millisecond changes.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from sglang_instrument import schema
from sglang_instrument.recording.clock import Clock
from sglang_instrument.recording.context import Context, Scope, default_worker, scope_for
from sglang_instrument.recording.notices import notice
from sglang_instrument.recording.spans import Span
from sglang_instrument.recording.tasks import Task, thread_task
from sglang_instrument.recording.values import settle

LONGEST_LINE: Final = 64 * 1024  # bytes of a record, newline included
# What is kept of a longer one; a character may take six bytes: 6 * 256 * (2 * 18 + 3) < LONGEST_LINE.
_LONGEST_KEPT: Final = 256
_MOST_KEPT: Final = 18


class Line(Struct, omit_defaults=True, gc=False):
    """A record as it is encoded; its fields are `schema.KEYS`, in that order."""

    timestamp: str
    event: str
    duration_sec: float | None = None
    extra: dict[str, Any] | None = None
    workid: int | None = None
    step: int | None = None
    start_us: int | None = None
    task: int | None = None
    spawned_by: int | None = None
    active_sec: float | None = None
    device_sec: float | None = None
    error: str | None = None
    validate: bool = False
    phase: str | None = None


if Line.__struct_fields__ != schema.KEYS:
    raise AssertionError("lines.Line and schema.KEYS differ")


class ShortLine(Struct, gc=False):
    """The usual record: a span without fields of its own, an error, or anything else that is rare.

    `extra` holds the text of three keys, from the value of "extra" through that of "step": Raw is copied
    into the line as it is, and all records of a context share it.
    """

    timestamp: str
    event: str
    duration_sec: float
    extra: Raw
    start_us: int
    task: int


class MiddleLine(Struct, omit_defaults=True, gc=False):
    """A span with fields of its own, one whose waiting was counted, or a point; nothing is rare in it."""

    timestamp: str
    event: str
    duration_sec: float | None = None
    extra: dict[str, Any] | None = None
    workid: int | None = None
    step: int | None = None
    start_us: int | None = None
    task: int | None = None
    active_sec: float | None = None


AnyLine = Line | MiddleLine | ShortLine


class LineMaker:
    """Make lines of spans; used by one thread at a time."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._encoder = msgspec.json.Encoder()
        self._endings: tuple[str, ...] = ()  # of a timestamp, by microsecond of the millisecond
        self._offset = ""

    def lines(self, spans: Iterable[Span]) -> dict[Scope, list[AnyLine]]:
        """Return the lines of spans by the scope whose file they belong to."""
        offset_us = self._clock.epoch_us(0)
        made: dict[Scope, list[AnyLine]] = {}
        last, thread = None, -1
        # Times are taken from the millisecond in which the last span ended: small numbers are fast.
        base_ns, base_us, prefix, endings = 0, offset_us, "", self._endings
        for span in spans:
            context = span.context
            if context is not last:
                last = context
                scope = context.scope or self.scope_of(context)
                part = context.part or self._part(context, scope)
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
            if not (part and task.announced is self) or span.error is not None or span.phase is not None:
                line = _long_line(span, scope, task, prefix + endings[microsecond], offset_us)
                if task.announced is not self:
                    task.announced, line.spawned_by = self, task.spawned_by
                add(line)
            elif end and span.extra is None and span.waited is None:
                add(
                    ShortLine(
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
                    MiddleLine(
                        prefix + endings[microsecond],
                        span.event,
                        (end - start) / 1e9 if end else None,
                        ids if extra is None else {**ids, **extra},
                        scope.worker,
                        scope.step,
                        (start - base_ns) // 1000 + base_us if end else None,
                        task.number,
                        None if waited is None else _active_sec(end - start, waited),
                    )
                )
        return made

    def scope_of(self, context: Context) -> Scope:
        """Return where the records of a context go; what nobody bound goes to step 0, said once."""
        if context.scope is not None:
            return context.scope
        scope = scope_for(context.role, context.worker, context.step, context.validate)
        if scope.role == "worker":
            notice(
                "no step bound",
                f"records without a bound step go to step_0/worker_{default_worker()}.jsonl; "
                "bind it with `with sglang_instrument.step(n):`",
            )
        return scope

    def encode(self, lines: list[AnyLine]) -> tuple[bytes, int]:
        """Return the lines as JSON, and how many of them had to be changed to be encoded at all."""
        try:
            encoded = self._encoder.encode_lines(lines)
        except Exception:  # one of them holds what JSON cannot say: find it, keep its neighbours
            return self._encode_singly(lines)
        # No line is too long if all of them together are not; else each is looked at.
        if len(encoded) > LONGEST_LINE and max(map(len, encoded.split(b"\n"))) >= LONGEST_LINE:
            return self._encode_singly(lines)
        return encoded, 0

    def control(self, event: str, scope: Scope, extra: Mapping[str, Any]) -> bytes:
        """Return a control record of now as one line."""
        timestamp = self._clock.timestamp(self._clock.now_us())
        line = Line(timestamp, event, None, dict(extra), scope.worker, scope.step, validate=scope.validate)
        return self.encode([line])[0]

    def _part(self, context: Context, scope: Scope) -> Raw | None:
        """Return, and keep in the context, what all its short lines share; None if they can't be short."""
        if context.extra is None or scope.step is None or scope.validate:
            return None
        try:
            ids = self._encoder.encode(context.extra)
        except Exception:  # a request id that JSON cannot say: the long way mends it
            return None
        part = context.part = Raw(ids + b',"workid":%d,"step":%d' % (scope.worker, scope.step))
        return part

    def _time(self, millisecond_us: int) -> tuple[str, tuple[str, ...]]:
        """Return the ISO timestamp of a millisecond up to its digits, and the 1000 ways in which it ends."""
        text = self._clock.timestamp(millisecond_us)
        if text[26:] != self._offset or not self._endings:
            self._offset = text[26:]
            self._endings = tuple(f"{microsecond:03d}{self._offset}" for microsecond in range(1000))
        return text[:23], self._endings

    def _encode_singly(self, lines: list[AnyLine]) -> tuple[bytes, int]:
        encoded, changed = bytearray(), 0
        for line in lines:
            one, was_changed = self._encode_one(line)
            encoded += one
            changed += was_changed
        return bytes(encoded), changed

    def _encode_one(self, line: AnyLine) -> tuple[bytes, bool]:
        changed = False
        try:
            encoded = self._encoder.encode_lines([line])
        except Exception:
            _settle(line)
            encoded, changed = self._encoder.encode_lines([line]), True
        if len(encoded) > LONGEST_LINE:
            line.event = line.event[:_LONGEST_KEPT]
            if not isinstance(line, ShortLine):
                line.extra = _cut(line.extra or {})
            if isinstance(line, Line):
                line.error = line.error and line.error[:_LONGEST_KEPT]
                line.phase = line.phase and line.phase[:_LONGEST_KEPT]
            encoded, changed = self._encoder.encode_lines([line]), True
        return encoded, changed


def _active_sec(duration_ns: int, waited_ns: int) -> float:
    return max(0, duration_ns - waited_ns) / 1e9


def _long_line(span: Span, scope: Scope, task: Task, timestamp: str, offset_us: int) -> Line:
    """Return the line of any span, with all the keys that it has."""
    ids, extra = span.context.extra, span.extra
    extra = {**ids, **extra} if extra and ids else extra or ids
    line = Line(timestamp, span.event, None, extra, scope.worker, scope.step, None, task.number)
    if span.end:
        line.duration_sec = (span.end - span.start) / 1e9
        line.start_us = span.start // 1000 + offset_us
        if span.waited is not None:
            line.active_sec = _active_sec(span.end - span.start, span.waited)
    line.error, line.phase, line.validate = span.error, span.phase, scope.validate
    return line


def _settle(line: AnyLine) -> None:
    line.event = settle(line.event)
    if not isinstance(line, ShortLine):
        line.extra = settle(line.extra)
    if isinstance(line, Line):
        line.error, line.phase = settle(line.error), settle(line.phase)


def _cut(extra: dict[str, Any]) -> dict[str, Any]:
    """Return the short fields of an extra that is too long for a line."""
    kept = {
        key: value
        for key, value in extra.items()
        if len(key) <= _LONGEST_KEPT
        and not isinstance(value, dict | list)
        and (not isinstance(value, str) or len(value) <= _LONGEST_KEPT)
    }
    return {**dict(list(kept.items())[:_MOST_KEPT]), "truncated": True}
