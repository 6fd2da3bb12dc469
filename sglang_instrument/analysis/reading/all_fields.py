"""Keep all that a line holds: beside the typed columns `extra` as text, and keys that have no column."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import orjson
import polars as pl

from sglang_instrument.analysis.reading.columns import Columns
from sglang_instrument.analysis.reading.decoding import decode_lines, fitting
from sglang_instrument.analysis.reading.folders import Place
from sglang_instrument.analysis.reading.lines import Extra, Line, Rejects, decode_one

#: Columns of text. `extra` is JSON, as it stands in the log; only what is not JSON (NaN, lone surrogates) is
#: null or replaced. `other_keys` is a JSON object of the line's keys without a column, and of those whose
#: values have another type than their column; null if there are none.
TEXT_COLUMNS: Final[dict[str, Any]] = {"extra": pl.String, "other_keys": pl.String}
_NONE: Final = msgspec.Raw(b"null")


class WholeLine(Line, gc=False, forbid_unknown_fields=True):
    """One record, with its fields as text.

    Attributes:
        text: `extra` as a value of `TEXT_COLUMNS`.
        others: `other_keys` as one.
    """

    extra: Any = None  # the decoder makes it msgspec.Raw, `decode_whole` an `Extra`
    # The names are those of no key: `decode_whole` sets both.
    text: str | None = msgspec.field(default=None, name="sglang_instrument.text")
    others: str | None = msgspec.field(default=None, name="sglang_instrument.others")


class _RawLine(WholeLine, gc=False, forbid_unknown_fields=True):
    """A line whose `extra` is not decoded yet."""

    extra: msgspec.Raw = _NONE


class _OnlyExtra(msgspec.Struct, gc=False):
    extra: msgspec.Raw = _NONE


_LINE: Final = msgspec.json.Decoder(_RawLine)
_EXTRAS: Final = msgspec.json.Decoder(Extra | None)
_ONLY_EXTRA: Final = msgspec.json.Decoder(_OnlyExtra)
_COLUMNS: Final = frozenset(Line.__struct_fields__)


def decode_whole(chunk: bytes, rejects: Rejects) -> list[WholeLine]:
    """Decode complete lines as `lines.decode` does, and keep all of their fields as text."""
    lines: list[WholeLine] = [*decode_lines(_LINE, chunk, lambda raw: _decode_leniently(raw, rejects))]
    texts = [bytes(line.extra) for line in lines]
    for line, text, extra in zip(lines, texts, _typed(texts), strict=True):
        line.extra = extra
        line.text = None if text == b"null" else text.decode("utf-8", "replace")
    return lines


def _typed(texts: Sequence[bytes]) -> list[Extra | None]:
    """Return the known fields of each `extra`."""
    try:
        extras: list[Extra | None] = _EXTRAS.decode_lines(b"\n".join(texts))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return [_typed_leniently(text) for text in texts]
    return extras


def _typed_leniently(text: bytes) -> Extra | None:
    try:
        extra: Extra | None = _EXTRAS.decode(text)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        fields = _loaded(text)
        return Extra(**fitting(Extra, fields)) if isinstance(fields, dict) else None
    return extra


def _decode_leniently(raw: bytes, rejects: Rejects) -> _RawLine | None:
    """Decode a line with keys that have no column, or with values that are no JSON, or of another type."""
    known = decode_one(raw, rejects)
    if known is None:
        return None
    line = _RawLine(**{name: getattr(known, name) for name in _COLUMNS - {"extra"}})
    fields = _loaded(raw) or {}
    line.extra = _extra_of(raw, fields)
    # A value that its column could not take is None in the line.
    left = {
        key: value
        for key, value in fields.items()
        if key != "extra" and value is not None and (key not in _COLUMNS or getattr(line, key) is None)
    }
    line.others = as_text(left) if left else None
    return line


def _extra_of(raw: bytes, fields: dict[str, Any]) -> msgspec.Raw:
    """Return `extra` of a line: as it stands, if it is JSON."""
    try:
        return _ONLY_EXTRA.decode(raw).extra
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return msgspec.Raw(as_text(fields.get("extra")).encode())


def _loaded(raw: bytes) -> Any:
    """Return the value of a text that is JSON, or nearly: None for NaN and infinities."""
    text = raw.decode("utf-8", "replace")
    try:
        return json.loads(text, parse_constant=lambda _: None, parse_float=_finite)
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


class WholeColumns(Columns):
    """The columns of a table, and `TEXT_COLUMNS`."""

    def __init__(self) -> None:
        super().__init__()
        self._texts: list[str | None] = []
        self._others: list[str | None] = []

    def add(self, lines: Sequence[Line], source: int) -> None:
        """Add lines of one source, which are `WholeLine`s."""
        super().add(lines, source)
        self._texts += [line.text for line in lines if isinstance(line, WholeLine)]
        self._others += [line.others for line in lines if isinstance(line, WholeLine)]

    def table(self, places: Sequence[Place], position: int) -> pl.DataFrame:
        """Return the columns as `Columns.table` does, and those of the text."""
        texts = (pl.Series("extra", self._texts), pl.Series("other_keys", self._others))
        return super().table(places, position).with_columns(*(text.cast(pl.String) for text in texts))


def fields_of(extra: str | None, other_keys: str | None) -> dict[str, Any]:
    """Return the fields of a record by name; where both have one, that of `extra`."""
    fields: dict[str, Any] = {}
    for text in filter(None, (other_keys, extra)):
        try:
            value = orjson.loads(text)
        except orjson.JSONDecodeError:  # a number or a depth that only json.loads takes
            value = _loaded(text.encode())
        fields |= value if isinstance(value, dict) else {}
    return fields


def with_texts(records: pl.DataFrame) -> pl.DataFrame:
    """Return records with `TEXT_COLUMNS`: null where they were read without, as those of foreign logs are."""
    missing = {name: kind for name, kind in TEXT_COLUMNS.items() if name not in records.columns}
    return records.with_columns(pl.lit(None, kind).alias(name) for name, kind in missing.items())
