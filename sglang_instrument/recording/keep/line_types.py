"""Define the encoded form of a record: its keys, its longest line, and how a longer one is cut."""

from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from sglang_instrument import schema
from sglang_instrument.recording.measure.values import make_encodable

LONGEST_LINE: Final = 64 * 1024  # bytes of a record, newline included
# Limits of a cut line; a character may take six bytes: 6 * 256 * (2 * 18 + 3) < LONGEST_LINE.
_LONGEST_KEPT: Final = 256  # characters of a key or value
_MOST_KEPT: Final = 18  # fields


class LogLine(Struct, omit_defaults=True, gc=False):
    """A record with all its keys: `schema.KEYS`, in that order."""

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


if LogLine.__struct_fields__ != schema.KEYS:
    raise AssertionError("line_types.LogLine and schema.KEYS differ")


class LineWithoutFields(Struct, gc=False):
    """The usual record: a span without its own fields, and without an error or any other rare key.

    `extra` holds the text of three keys, from the value of "extra" through that of "step": Raw is copied
    into the line as it is, and all records of a context share it.
    """

    timestamp: str
    event: str
    duration_sec: float
    extra: Raw
    start_us: int
    task: int


class LineWithFields(Struct, omit_defaults=True, gc=False):
    """A span with its own fields or with `active_sec`, or an instant event; without rare keys."""

    timestamp: str
    event: str
    duration_sec: float | None = None
    extra: dict[str, Any] | None = None
    workid: int | None = None
    step: int | None = None
    start_us: int | None = None
    task: int | None = None
    active_sec: float | None = None


AnyLine = LogLine | LineWithFields | LineWithoutFields


def make_line_encodable(line: AnyLine) -> None:
    """Change the line so that JSON can always encode it."""
    line.event = make_encodable(line.event)
    if not isinstance(line, LineWithoutFields):
        try:
            line.extra = make_encodable(line.extra)
        except RecursionError:  # this value was not reduced when it was recorded
            line.extra = {"truncated": True}
    if isinstance(line, LogLine):
        line.error, line.phase = make_encodable(line.error), make_encodable(line.phase)


def cut(line: AnyLine) -> AnyLine:
    """Shorten a line that is longer than LONGEST_LINE; return the shorter line."""
    if isinstance(line, LineWithoutFields):
        line = _spell_out(line)
    line.event = line.event[:_LONGEST_KEPT]
    line.extra = _cut_fields(line.extra or {})
    if isinstance(line, LogLine):
        line.error = line.error and line.error[:_LONGEST_KEPT]
        line.phase = line.phase and line.phase[:_LONGEST_KEPT]
    return line


def _spell_out(line: LineWithoutFields) -> LogLine:
    shared = msgspec.json.decode(b'{"extra":%s}' % bytes(line.extra))
    spelled = LogLine(line.timestamp, line.event, line.duration_sec, **shared)
    spelled.start_us, spelled.task = line.start_us, line.task
    return spelled


def _cut_fields(extra: dict[str, Any]) -> dict[str, Any]:
    """Return the short fields of an `extra` that is too long for a line."""
    short_fields = {
        key: value
        for key, value in extra.items()
        if len(key) <= _LONGEST_KEPT
        and not isinstance(value, dict | list)
        and (not isinstance(value, str) or len(value) <= _LONGEST_KEPT)
    }
    return {**dict(list(short_fields.items())[:_MOST_KEPT]), "truncated": True}
