"""Decode lines of JSON into Structs: all at once, and one by one where a line is no record."""

import json
import math
from collections.abc import Callable, Iterator
from typing import Any, Final, TypeVar

import msgspec

_Kind = TypeVar("_Kind")
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


def fitting(kind: type[msgspec.Struct], fields: dict[str, Any]) -> dict[str, Any]:
    """Return those fields that a Struct has and whose values have the right type."""
    valid = {}
    for field in msgspec.structs.fields(kind):
        if field.encode_name in fields:
            try:
                valid[field.name] = msgspec.convert(printable(fields[field.encode_name]), field.type)
            except (msgspec.ValidationError, RecursionError, UnicodeError):
                continue
    return valid


def printable(value: Any) -> Any:
    """Return text without lone surrogates, which a column cannot hold; anything else as it is."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value


def loaded(raw: bytes) -> Any:
    """Return the value of a text that is JSON, or nearly: None for NaN and infinities; None if it is not.

    The reference's class writes NaN and lone surrogates, which are not valid JSON.
    """
    try:
        return json.loads(raw.decode("utf-8", "replace"), parse_constant=lambda _: None, parse_float=_finite)
    except (ValueError, RecursionError):
        return None


def _finite(digits: str) -> float | None:
    return number if math.isfinite(number := float(digits)) else None


def as_text(value: Any) -> str:
    """Return a value as JSON; lone surrogates are replaced, and what is nested too deep is left out."""
    try:
        return json.dumps(value, ensure_ascii=False).encode("utf-8", "replace").decode()
    except RecursionError:
        return "null"
