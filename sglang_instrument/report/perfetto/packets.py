"""Write packets of a Perfetto trace, in protobuf, as a stream.

Fields and their numbers: perfetto.dev, protos/perfetto/trace/track_event/*.proto. Names, categories and keys
are written once, and later referred to by number.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from typing import BinaryIO, Final

SLICE_BEGIN: Final = 1
SLICE_END: Final = 2
INSTANT: Final = 3
COUNTER: Final = 4
CHRONOLOGICAL: Final = 2  # order of the children of a track

_SEQUENCE: Final = 1
_CLEARED: Final = 1  # flag of the first packet: forget what was interned before
_NEEDED: Final = 2  # flag of the others: they need what was interned
_REALTIME: Final = 1
_BOOTTIME: Final = 6
_FLUSH_BYTES: Final = 2**20
_REMEMBERED: Final = 100_000  # cached annotations

Value = str | int | float | bool


class Packets:
    """A Perfetto trace that is written to a stream; times are nanoseconds since the Unix epoch."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._parts: list[bytes] = []
        self._length = 0
        self._tracks = 0
        self._names: dict[str, int] = {}
        self._categories: dict[str, int] = {}
        self._keys: dict[str, int] = {}
        self._interned = b""
        self._words: dict[tuple[str, str], bytes] = {}
        self._annotations: dict[tuple[str, Value], bytes] = {}
        self._on_track: tuple[int, bytes] = (0, b"")
        self.written = 0
        self._packet(_number(13, _CLEARED) + _number(87, 1))

    def clock(self, now_ns: int) -> None:
        """Declare that the times are wall-clock times, so that the viewer shows them as such."""
        clocks = b"".join(
            _message(1, _number(1, clock) + _number(2, now_ns)) for clock in (_BOOTTIME, _REALTIME)
        )
        self._packet(_message(6, clocks) + _number(8, now_ns))

    def process(self, pid: int, name: str) -> int:
        """Begin a group of tracks; return its number. `pid` only sets its place among the groups."""
        return self._track(_message(3, _number(1, pid) + _text(6, name)))

    def track(self, parent: int, name: str, rank: int | None = None) -> int:
        """Begin a track below a group or a track; return its number.

        Args:
            parent: The number of the group or track.
            name: The track's name.
            rank: Its place among its siblings; without, they are in the order of time.
        """
        placed = b"" if rank is None else _number(12, rank)
        return self._track(_text(2, name) + _number(5, parent) + _number(11, CHRONOLOGICAL) + placed)

    def counter(self, parent: int, name: str, unit: str) -> int:
        """Begin a counter track; return the track's number."""
        return self._track(_text(2, name) + _number(5, parent) + _message(8, _text(6, unit)))

    def begin(
        self,
        track: int,
        at_ns: int,
        name: str,
        category: str,
        values: Mapping[str, Value] | None = None,
        flow: int | None = None,
        last: bool = False,
    ) -> None:
        """Begin a slice; arrows join the slices of one flow, up to its `last` one."""
        more = self._annotated(values) if values else b""
        if flow is not None:
            more += _tag(48 if last else 47, 1) + flow.to_bytes(8, "little")
        self._event(_BEGINS + self._named(name, category) + more, track, at_ns)

    def end(self, track: int, at_ns: int) -> None:
        """End the slice of a track that began last."""
        self._event(_ENDS, track, at_ns)

    def instant(
        self, track: int, at_ns: int, name: str, category: str, values: Mapping[str, Value] | None = None
    ) -> None:
        """Write an instant event."""
        more = self._annotated(values) if values else b""
        self._event(_MARKS + self._named(name, category) + more, track, at_ns)

    def count(self, track: int, at_ns: int, value: int) -> None:
        """Set an integer counter from this time on."""
        self._event(_COUNTS + _number(30, value), track, at_ns)

    def amount(self, track: int, at_ns: int, value: float) -> None:
        """Set a floating-point counter from this time on."""
        self._event(_COUNTS + _double(44, value), track, at_ns)

    def flush(self) -> None:
        """Write the buffered packets."""
        self._stream.write(b"".join(self._parts))
        self.written += self._length
        self._parts, self._length = [], 0

    def _track(self, described: bytes) -> int:
        self._tracks += 1
        self._packet(_message(60, _number(1, self._tracks) + described))
        return self._tracks

    def _event(self, body: bytes, track: int, at_ns: int) -> None:
        if self._on_track[0] != track:
            self._on_track = (track, _number(11, track))
        interned = b""
        if self._interned:
            interned, self._interned = _message(12, self._interned), b""
        timestamp = _time(at_ns) if at_ns >= _LONG else _number(8, at_ns)
        self._packet(timestamp + _IS_NEEDED + interned + _message(11, body + self._on_track[1]))

    def _named(self, name: str, category: str) -> bytes:
        words = self._words.get((name, category))
        if words is None:
            name_number = self._number_of(self._names, 2, name)
            words = _number(10, name_number) + _number(3, self._number_of(self._categories, 1, category))
            self._words[name, category] = words
        return words

    def _annotated(self, values: Mapping[str, Value]) -> bytes:
        return b"".join([self._annotation(key, value) for key, value in values.items()])

    def _annotation(self, key: str, value: Value) -> bytes:
        if isinstance(value, float):  # rarely repeats: not cached
            return _message(4, self._key(key) + _double(5, value))
        known = self._annotations.get((key, value))
        if known is None:
            if len(self._annotations) > _REMEMBERED:
                self._annotations.clear()
            coded = _number(4, value) if isinstance(value, int) else _text(6, value)
            known = self._annotations[key, value] = _message(4, self._key(key) + coded)
        return known

    def _key(self, key: str) -> bytes:
        return _number(1, self._number_of(self._keys, 3, key))

    def _number_of(self, known: dict[str, int], field: int, word: str) -> int:
        """Return the number that stands for a word; a new word is written with the next event."""
        number = known.get(word)
        if number is None:
            number = known[word] = len(known) + 1
            self._interned += _message(field, _number(1, number) + _text(2, word))
        return number

    def _packet(self, body: bytes) -> None:
        packet = b"".join((b"\x0a", _varint(len(body) + len(_IN_SEQUENCE)), body, _IN_SEQUENCE))
        self._parts.append(packet)
        self._length += len(packet)
        if self._length > _FLUSH_BYTES:
            self.flush()


def _varint(value: int) -> bytes:
    if 0 <= value < len(_SHORT):
        return _SHORT[value]
    value &= 2**64 - 1  # negative numbers are written as unsigned ones of 64 bits
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _time(at_ns: int) -> bytes:
    """Return the field of a present-day timestamp, 14 bits at a time; half of the time is spent here."""
    return b"".join(
        (
            b"\x40",
            _PAIRS[at_ns & 0x3FFF],
            _PAIRS[at_ns >> 14 & 0x3FFF],
            _PAIRS[at_ns >> 28 & 0x3FFF],
            _PAIRS[at_ns >> 42 & 0x3FFF],
            _varint(at_ns >> 56),
        )
    )


def _short(value: int) -> bytes:
    return bytes((value,)) if value < 0x80 else bytes((value & 0x7F | 0x80, value >> 7))


def _tag(field: int, wire: int) -> bytes:
    return _varint(field << 3 | wire)


def _number(field: int, value: int) -> bytes:
    return _SHORT[field << 3] + _varint(value)


def _double(field: int, value: float) -> bytes:
    return _tag(field, 1) + struct.pack("<d", value)


def _message(field: int, body: bytes) -> bytes:
    return b"".join((_SHORT[field << 3 | 2], _varint(len(body)), body))


def _text(field: int, value: str) -> bytes:
    return _message(field, value.encode(errors="replace"))


_SHORT: Final = [_short(value) for value in range(0x4000)]
_PAIRS: Final = [bytes((value & 0x7F | 0x80, value >> 7 | 0x80)) for value in range(0x4000)]
_LONG: Final = 2**56  # from this time (1972) on, a timestamp has nine bytes
_IS_NEEDED: Final = _number(13, _NEEDED)
_IN_SEQUENCE: Final = _number(10, _SEQUENCE)
_BEGINS, _ENDS, _MARKS, _COUNTS = (_number(9, kind) for kind in (SLICE_BEGIN, SLICE_END, INSTANT, COUNTER))
