"""Decode the events of a list in a text that may be broken, unfinished, or written by any profiler.

The order of keys in an event has no meaning. So text is cut where a brace, a comma and a brace follow one
another. That may also stand inside an event, in a string or a list: then the piece does not decode as a
whole, and is decoded event by event.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

import msgspec
from msgspec import Struct


class EventArgs(Struct, gc=False, frozen=True):
    """The arguments of an event that the analysis needs; the decoder skips all others.

    Some profilers write numbers as text.
    """

    stream: int | float | str | None = None
    device: int | float | str | None = None
    correlation: int | float | str | None = None
    size_bytes: int | float | str | None = msgspec.field(default=None, name="bytes")
    task_type: str | None = msgspec.field(default=None, name="Task Type")  # Ascend's events have no category


NO_ARGS: Final = EventArgs()


class TraceEvent(Struct, gc=False):
    """An event of a Chrome trace as in the file; times are microseconds."""

    ph: str = ""
    name: str | int = ""
    cat: str = ""
    ts: int | float | str | None = None
    dur: int | float | str | None = None
    pid: int | str = 0
    tid: int | str = 0
    args: EventArgs = NO_ARGS


_SEPARATOR: Final = re.compile(rb"\}\s*,\s*(?=\{)")
_SEPARATOR_TEXT: Final = re.compile(r"\}\s*,\s*(?=\{)")
_BETWEEN: Final = re.compile(r"[\s,]*")
_ENDING_BYTES: Final = 1024  # more than the separator between two events needs
_NEAR_BYTES: Final = 8 * 1024
_MOST_BROKEN: Final = 1000  # of a piece; after so many the rest of it counts as broken, too
_INVALID: Final = (msgspec.MsgspecError, UnicodeError, RecursionError)
_decode = msgspec.json.Decoder(list[TraceEvent]).decode
_parse = json.JSONDecoder(strict=False).raw_decode
_FIELDS: Final = msgspec.structs.fields(TraceEvent)
_FIELDS_OF_ARGS: Final = msgspec.structs.fields(EventArgs)


def last_begin(data: bytes, since: int) -> int | None:
    """Return where the last event behind another one seems to begin; None if none does after `since`."""
    for start in (max(since, len(data) - _NEAR_BYTES), since):  # most events are short
        last = None
        for match in _SEPARATOR.finditer(data, start):
            last = match.end()
        if last is not None or start == since:
            return last
    return None


def decoded(body: bytes) -> list[TraceEvent] | None:
    """Return the events of some text, or None if it does not consist of complete, valid events."""
    end = body[-_ENDING_BYTES:].rstrip().rstrip(b",")  # only the end: stripping the body would copy it
    body = body[: len(body) - min(len(body), _ENDING_BYTES) + len(end)]
    try:
        return _decode(b"".join((b"[", body, b"]")))
    except _INVALID:
        return None


class Singly:
    """Events decoded one by one, so that a broken one costs no other.

    Attributes:
        events: The events.
        broken: How many are none.
        rest: The text behind them: of an event that does not end yet.
        tail: The text behind their list; None if the list does not end.
    """

    def __init__(self, data: bytes, patience: int) -> None:
        """Decode events.

        Args:
            data: The text; it begins with an event, or with what stands between two.
            patience: In so many bytes at the end, an event that does not decode may be unfinished.
        """
        self.events: list[TraceEvent] = []
        self.broken = 0
        self.tail: bytes | None = None
        text = data.decode("utf-8", "surrogateescape")
        position = self._decode_all(text, patience)
        self.rest = text[position:].encode("utf-8", "surrogateescape")

    def _decode_all(self, text: str, patience: int) -> int:
        """Decode as far as possible, and return where that ends."""
        position = 0
        while (position := _behind(_BETWEEN, text, position)) < len(text):
            if text[position] == "]":
                self.tail = text[position:].encode("utf-8", "surrogateescape")
                return len(text)
            try:
                value, end = _parse(text, position)
            except (ValueError, RecursionError):
                following = _SEPARATOR_TEXT.search(text, position)
                if len(text) - position <= patience or following is None:
                    return position
                self.broken += 1
                position = following.end()
                if self.broken >= _MOST_BROKEN:
                    self.broken += sum(1 for _ in _SEPARATOR_TEXT.finditer(text, position))
                    return len(text)
                continue
            event = _event(text[position:end], value)
            if event is None:
                self.broken += 1
            else:
                self.events.append(event)
            position = end
        return position


def _behind(pattern: re.Pattern[str], text: str, position: int) -> int:
    match = pattern.match(text, position)
    return position if match is None else match.end()


def _event(text: str, value: Any) -> TraceEvent | None:
    """Return an event, without those of its fields that do not fit; None if the value is no event."""
    if not isinstance(value, dict):
        return None
    try:
        return _decode(f"[{text}]".encode())[0]
    except _INVALID:
        pass
    args = value.pop("args", None)
    event = TraceEvent(**_fitting(value, _FIELDS))
    if isinstance(args, dict):
        event.args = EventArgs(**_fitting(args, _FIELDS_OF_ARGS))
    return event


def _fitting(values: dict[str, Any], fields: tuple[msgspec.structs.FieldInfo, ...]) -> dict[str, Any]:
    fitting = {}
    for field in fields:
        if field.encode_name in values:
            try:
                fitting[field.name] = msgspec.convert(_printable(values[field.encode_name]), field.type)
            except (msgspec.ValidationError, RecursionError, UnicodeError):
                continue
    return fitting


def _printable(value: Any) -> Any:
    """Return text without lone surrogates, which a column cannot hold."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
