"""Decode the lines of a log, ours or the reference's, complete or torn.

Keys of a line are typed. `extra` stays as it stands: `fields.typed` decodes the fields that are asked for, of
those lines whose fields are of use.
"""

from dataclasses import dataclass, field
from typing import Annotated, Any, Final

import msgspec
from msgspec import Meta, Struct

from sglang_instrument.analysis.reading.records.decoding import (
    as_text,
    decode_lines,
    fitting,
    loaded,
    note_not_finite,
)
from sglang_instrument.analysis.reading.records.unfit import NotFinite, UnfitFields

# Columns hold 64 bits; a line with a larger number is decoded leniently and loses only that field.
MOST: Final = 2**62
Integer = Annotated[int, Meta(ge=-MOST, le=MOST)]
Seconds = Annotated[float, Meta(ge=0, le=2**33)]  # 272 years
#: A start in Unix microseconds, of the years from 1000 to 9000: calendars of Python end with 9999.
EARLIEST_US: Final = -30_610_224_000_000_000
LATEST_US: Final = 221_845_392_000_000_000
Moment = Annotated[int, Meta(ge=EARLIEST_US, le=LATEST_US)]


#: `extra` of a line that has none.
NO_EXTRA: Final = msgspec.Raw(b"null")


class Line(Struct, gc=False, omit_defaults=True):
    """One record of a file; `extra` is JSON."""

    timestamp: str
    event: str
    duration_sec: Seconds | None = None
    extra: msgspec.Raw = NO_EXTRA
    workid: Integer | None = None
    step: Integer | None = None
    start_us: Moment | None = None
    task: Integer | None = None
    spawned_by: Integer | None = None
    active_sec: Seconds | None = None
    device_sec: Seconds | None = None
    error: str | None = None
    validate: bool | None = None
    phase: str | None = None

    @property
    def end_us(self) -> int:
        """When it ended, if it has a start."""
        return (self.start_us or 0) + int((self.duration_sec or 0.0) * 1e6)


@dataclass
class Rejects:
    """Counts of lines that are no records: torn ones begin like one and end early, foreign ones do not.

    Attributes:
        torn: The count of torn lines.
        foreign: The count of foreign lines.
        lines: These lines; None to count them only.
        unfit: Values in lines that are records, but fit no column.
    """

    torn: int = 0
    foreign: int = 0
    lines: list[bytes] | None = None
    unfit: UnfitFields = field(default_factory=dict)

    def add(self, raw: bytes, is_torn: bool) -> None:
        """Count a line."""
        self.torn += is_torn
        self.foreign += not is_torn
        if self.lines is not None:
            self.lines.append(raw)


class WholeLine(Line, gc=False, forbid_unknown_fields=True):
    """One record with all of its keys.

    Attributes:
        others: A JSON object of keys that `Line` lacks, and of those whose values have another type than
            there; None if there are none.
    """

    # The name is that of no key: `_decode_leniently` sets it.
    others: str | None = msgspec.field(default=None, name="sglang_instrument.others")


class _OnlyExtra(Struct, gc=False):
    extra: msgspec.Raw = NO_EXTRA


_LINE: Final = msgspec.json.Decoder(Line)
_WHOLE: Final = msgspec.json.Decoder(WholeLine)
_ONLY_EXTRA: Final = msgspec.json.Decoder(_OnlyExtra)
_KEYS: Final = frozenset(Line.__struct_fields__)


def decode(chunk: bytes, rejects: Rejects) -> list[Line]:
    """Decode complete lines; count those that are not records in `rejects`."""
    return decode_lines(_LINE, chunk, lambda raw: _decode_leniently(raw, rejects))


def decode_whole(chunk: bytes, rejects: Rejects) -> list[WholeLine]:
    """Decode complete lines as `decode` does, with the keys that a `Line` cannot hold."""
    return decode_lines(_WHOLE, chunk, lambda raw: _decode_leniently(raw, rejects))


def _decode_leniently(raw: bytes, rejects: Rejects) -> WholeLine | None:
    """Decode a record with values that are no JSON or of another type, or with keys of nobody we know."""
    fields = loaded(raw, NotFinite)
    if not _is_record(fields):
        rejects.add(raw, is_torn=fields is None and raw.lstrip().startswith(b'{"'))
        return None
    extra = _extra_of(raw, fields.pop("extra", None), rejects.unfit)
    line = WholeLine(**fitting(Line, fields, rejects.unfit), extra=extra)
    note_not_finite(rejects.unfit, {key: value for key, value in fields.items() if key not in _KEYS})
    # A value that its key could not take is None in the line.
    left = {
        key: value
        for key, value in fields.items()
        if value is not None and (key not in _KEYS or getattr(line, key) is None)
    }
    line.others = as_text(left) if left else None
    return line


def _is_record(fields: Any) -> bool:
    return isinstance(fields, dict) and all(
        isinstance(fields.get(key), str) for key in ("event", "timestamp")
    )


def _extra_of(raw: bytes, extra: Any, unfit: UnfitFields) -> msgspec.Raw:
    """Return `extra` of a line: as it stands, if the line is JSON."""
    try:
        return _ONLY_EXTRA.decode(raw).extra
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        if isinstance(extra, dict):
            note_not_finite(unfit, extra)
        return NO_EXTRA if extra is None else msgspec.Raw(as_text(extra).encode())
