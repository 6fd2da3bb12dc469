"""Decode lines of JSON into Structs: all at once, and one by one where a line is no record."""

import json
import math
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

import msgspec

from sglang_instrument.analysis.reading.records.unfit import NotFinite, UnfitFields, note_unfit

_Kind = TypeVar("_Kind")
_MOST_DIGITS: Final = 4_000  # Python makes no integer of many more
_INVALID: Final = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)


def decode_lines(
    decoder: msgspec.json.Decoder[_Kind],
    chunk: bytes,
    instead: Callable[[bytes], _Kind | None] = lambda line: None,
) -> list[_Kind]:
    """Return the records of complete lines.

    Args:
        decoder: Decodes a line.
        chunk: The lines.
        instead: Called with each line that the decoder refuses; returns its record, or None to leave it out.
    """
    try:
        return decoder.decode_lines(chunk)
    except _INVALID:
        return list(_decode_singly(decoder, chunk, instead))


def _decode_singly(
    decoder: msgspec.json.Decoder[_Kind], chunk: bytes, instead: Callable[[bytes], _Kind | None]
) -> Iterator[_Kind]:
    for raw in chunk.split(b"\n"):
        if not raw.strip():
            continue
        try:
            yield decoder.decode(raw)
        except _INVALID:
            record = instead(raw)
            if record is not None:
                yield record


def fitting(
    kind: type[msgspec.Struct], fields: dict[str, Any], unfit: UnfitFields | None = None
) -> dict[str, Any]:
    """Return those fields that a Struct has and whose values have the right type; count the others."""
    valid = {}
    for field in msgspec.structs.fields(kind):
        if field.encode_name not in fields:
            continue
        value = fields[field.encode_name]
        try:
            if isinstance(value, NotFinite):
                raise msgspec.ValidationError
            valid[field.name] = msgspec.convert(_finite(printable(value)), field.type)
        except (msgspec.ValidationError, RecursionError, UnicodeError):
            if unfit is not None:
                note_unfit(unfit, field.encode_name, as_text(value))
    return valid


def _finite(value: Any) -> Any:
    """Return a value with None in place of numbers inside it that are not finite."""
    if isinstance(value, list):
        return [_finite(item) for item in value]
    if isinstance(value, dict):
        return {name: _finite(item) for name, item in value.items()}
    return None if isinstance(value, NotFinite) else value


def note_not_finite(unfit: UnfitFields, fields: dict[str, Any]) -> None:
    """Count the fields that are, or list, numbers that are not finite: they are null in `as_text`."""
    for name, value in fields.items():
        values = value if isinstance(value, list) else [value]
        if any(isinstance(item, NotFinite) for item in values):
            note_unfit(unfit, name, as_text(next(item for item in values if isinstance(item, NotFinite))))


def printable(value: Any) -> Any:
    """Return text without lone surrogates, which a column cannot hold; anything else as it is."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


def loaded(raw: bytes, not_finite: Callable[[str], Any] = lambda digits: None) -> Any:
    """Return the value of a text that is JSON, or nearly; None if it is not.

    The reference's class writes NaN and lone surrogates, which are not valid JSON.

    Args:
        raw: The text.
        not_finite: Makes the value of a number that no float holds, such as NaN, from its digits.
    """

    def real(digits: str) -> Any:
        return number if math.isfinite(number := float(digits)) else not_finite(digits)

    def integer(digits: str) -> Any:
        return int(digits) if len(digits) < _MOST_DIGITS else not_finite(digits)

    text = raw.decode("utf-8", "replace")
    for parse_int in (None, integer):  # the own function is slow, and few texts need it
        try:
            return json.loads(text, parse_constant=not_finite, parse_float=real, parse_int=parse_int)
        except (ValueError, RecursionError):
            continue
    return None


def as_text(value: Any) -> str:
    """Return a value as JSON; lone surrogates are replaced, and what is nested too deep is left out.

    Of `NotFinite`, the digits; inside another value, null.
    """
    if isinstance(value, NotFinite):
        return value.digits
    try:
        text = json.dumps(value, ensure_ascii=False, default=lambda number: None)
        return text.encode("utf-8", "replace").decode()
    except RecursionError:
        return "null"
