"""Say what a record is when it is encoded: its keys, how long it may be, what is left of a longer one."""

from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from sglang_instrument import schema
from sglang_instrument.recording.measure.values import settle

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
    raise AssertionError("shapes.Line and schema.KEYS differ")


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


def settle_line(line: AnyLine) -> None:
    """Make the line one that can be encoded, whatever it holds."""
    line.event = settle(line.event)
    if not isinstance(line, ShortLine):
        try:
            line.extra = settle(line.extra)
        except RecursionError:  # values are reduced where they are recorded: somebody went round that
            line.extra = {"truncated": True}
    if isinstance(line, Line):
        line.error, line.phase = settle(line.error), settle(line.phase)


def cut(line: AnyLine) -> AnyLine:
    """Return what a record may be of a line that is longer."""
    if isinstance(line, ShortLine):
        line = _spell_out(line)
    line.event = line.event[:_LONGEST_KEPT]
    line.extra = _cut_fields(line.extra or {})
    if isinstance(line, Line):
        line.error = line.error and line.error[:_LONGEST_KEPT]
        line.phase = line.phase and line.phase[:_LONGEST_KEPT]
    return line


def _spell_out(line: ShortLine) -> Line:
    shared = msgspec.json.decode(b'{"extra":%s}' % bytes(line.extra))
    spelled = Line(line.timestamp, line.event, line.duration_sec, **shared)
    spelled.start_us, spelled.task = line.start_us, line.task
    return spelled


def _cut_fields(extra: dict[str, Any]) -> dict[str, Any]:
    """Return the short fields of an extra that is too long for a line."""
    kept = {
        key: value
        for key, value in extra.items()
        if len(key) <= _LONGEST_KEPT
        and not isinstance(value, dict | list)
        and (not isinstance(value, str) or len(value) <= _LONGEST_KEPT)
    }
    return {**dict(list(kept.items())[:_MOST_KEPT]), "truncated": True}
