"""Decode lines of JSON into Structs: all at once, and one by one where a line is no record."""

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
    kept = {}
    for one in msgspec.structs.fields(kind):
        if one.encode_name in fields:
            try:
                kept[one.name] = msgspec.convert(printable(fields[one.encode_name]), one.type)
            except (msgspec.ValidationError, RecursionError, UnicodeError):
                continue
    return kept


def printable(value: Any) -> Any:
    """Return text without lone surrogates, which a column cannot hold; anything else as it is."""
    return value.encode("utf-8", "replace").decode() if isinstance(value, str) else value
