"""Read a torch profiler's file, which may be huge, gzipped or truncated, one piece in memory at a time."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, BinaryIO, Final

import msgspec
from msgspec import Struct

from sglang_instrument.errors import LogError
from sglang_instrument.regular_files import open_regular

PIECE_BYTES: Final = 2**18  # decoded at once: its events fit into the processor's cache
_HEAD_BYTES: Final = 2**20  # a trace's events begin within these bytes
_LONGEST_EVENT_BYTES: Final = 64 * 2**20
_SMALLEST_BYTES: Final = 2**16  # in more bytes, an event that does not decode is broken, not unfinished
_ENDING_BYTES: Final = 1024  # more than the separator between two events needs
_GZIP_MAGIC: Final = b"\x1f\x8b"
_GZIP_BITS: Final = 31  # of zlib: a gzip header, and the largest window
_PACKED_BYTES: Final = 2**18
_EVENTS: Final = re.compile(rb'"traceEvents"\s*:\s*\[')
_FIRST_KEY: Final = re.compile(rb'\s*\{\s*("\w+")\s*:')


class EventArgs(Struct, gc=False, frozen=True):
    """The arguments of an event that the analysis needs; the decoder skips all others."""

    stream: int | str | None = None
    device: int | str | None = None
    correlation: int | str | None = None
    size_bytes: int | float | None = msgspec.field(default=None, name="bytes")


NO_ARGS: Final = EventArgs()


class TraceEvent(Struct, gc=False):
    """An event of a Chrome trace as in the file; times are microseconds."""

    ph: str = ""
    name: str | int = ""
    cat: str = ""
    ts: float = 0.0
    dur: float | None = None
    pid: int | str = 0
    tid: int | str = 0
    args: EventArgs = NO_ARGS


@dataclass
class Header:
    """What a trace says about itself, and what was wrong with its file.

    Attributes:
        base_ns: To be added to its times to get nanoseconds since the Unix epoch.
        devices: Names of its GPUs.
        rank: Of the process group, if there was one.
        world_size: Of the process group.
        host: Name of the host.
        read_bytes: Length of the file, decompressed.
        truncated: Whether the file ends early.
        broken: Events that could not be decoded.
    """

    base_ns: int = 0
    devices: list[str] = field(default_factory=list)
    rank: int | None = None
    world_size: int | None = None
    host: str | None = None
    read_bytes: int = 0
    truncated: bool = False
    broken: int = 0


def read_events(
    path: Path, header: Header, progress: Callable[[int, int], object] | None = None
) -> Iterator[list[TraceEvent]]:
    """Yield the events of a trace, some thousands at a time, and fill in its header.

    Args:
        path: A Chrome trace of a torch profiler, JSON or gzip.
        header: Complete after the last events.
        progress: Called with the bytes read so far, and the size of the file.

    Raises:
        LogError: The file holds no trace.
    """
    with open_regular(path) as raw:
        events = _Events(path, header)
        size = path.stat().st_size
        for piece in _pieces(raw, header):
            header.read_bytes += len(piece)
            if progress is not None:
                progress(raw.tell(), size)
            yield from events.feed(piece)
        yield from events.close()


def _pieces(raw: BinaryIO, header: Header) -> Iterator[bytes]:
    """Yield the decompressed content of a file, as far as it can be read."""
    magic = raw.read(2)
    raw.seek(0)
    if magic != _GZIP_MAGIC:
        while piece := raw.read(PIECE_BYTES):
            yield piece
        return
    # Not gzip.open(): at the end of a truncated file, it drops what it has decompressed.
    unpack = zlib.decompressobj(wbits=_GZIP_BITS)
    begun = False
    while packed := raw.read(_PACKED_BYTES):
        while packed:
            try:
                piece = unpack.decompress(packed, PIECE_BYTES)
            except zlib.error:
                header.truncated = True
                return
            begun = True
            if piece:
                yield piece
            packed = unpack.unconsumed_tail
            if unpack.eof:  # another gzip member may follow
                packed = unpack.unused_data.lstrip(b"\x00")
                unpack, begun = zlib.decompressobj(wbits=_GZIP_BITS), False
    header.truncated = begun


class _Events:
    """Split the text where events begin; the first key of the first event marks the beginning of each."""

    def __init__(self, path: Path, header: Header) -> None:
        self._path = path
        self._header = header
        self._rest = b""
        self._begins: re.Pattern[bytes] | None = None
        self._key = b""
        self._decode = msgspec.json.Decoder(list[TraceEvent]).decode

    def feed(self, piece: bytes) -> Iterator[list[TraceEvent]]:
        """Yield the complete events so far."""
        data = self._rest + piece
        if not self._key:
            start = self._begin(data)
            if start is None:
                self._rest = data
                if len(data) > _HEAD_BYTES:
                    raise self._foreign()
                return
            data = data[start:]
        cut = self._last_cut(data)
        if cut is None:
            if len(data) > _LONGEST_EVENT_BYTES:
                raise LogError(f"{self._path}: no event ends within {_LONGEST_EVENT_BYTES >> 20} MiB")
            self._rest = data
            return
        events = self._decoded(data[:cut])
        if events is None:
            # The cut may be inside an event whose arguments look like an event: wait for more text.
            if len(data) <= max(2 * PIECE_BYTES, _SMALLEST_BYTES):
                self._rest = data
                return
            events = self._one_by_one(data[:cut])
        self._rest = data[cut:]
        yield events

    def close(self) -> Iterator[list[TraceEvent]]:
        """Yield the last events, and read the header's fields after them."""
        if not self._key:
            if self._header.truncated:
                raise LogError(
                    f"{self._path}: cut short before its first event; is the profiler still writing it?"
                )
            if b"traceEvents" not in self._rest and not self._rest.lstrip().startswith(b"["):
                raise self._foreign()
            self._header.truncated = not _is_whole(self._rest)
            _describe(self._header, self._rest)
            return
        body, tail = self._ending(self._rest)
        if not tail and (cut := self._last_cut(self._rest)) is not None:
            # Truncated or broken: decode the events before the last one singly.
            before = self._rest[:cut]
            yield self._decoded(before) or self._one_by_one(before)
            body, tail = self._ending(self._rest[cut:])
        self._header.truncated |= not tail
        _describe(self._header, tail)
        if body:
            yield self._decoded(body) or self._one_by_one(body)

    def _begin(self, data: bytes) -> int | None:
        """Return where the first event begins, and read the header's fields before it."""
        listed = _EVENTS.search(data)
        start = listed.end() if listed else None
        if start is None and data.lstrip().startswith(b"["):
            start = data.index(b"[") + 1
        first = None if start is None else _FIRST_KEY.match(data, start)
        if first is None or start is None:
            return None
        _describe(self._header, data[:start])
        self._key = first[1]
        self._begins = re.compile(rb"\}\s*,\s*(?=\{\s*" + re.escape(self._key) + rb"\s*:)")
        return start

    def _last_cut(self, data: bytes) -> int | None:
        """Return where the last event begins: an unescaped key after a brace is never inside a string."""
        before = len(data)
        while (position := data.rfind(self._key, 0, before)) > 0:
            head = data[max(0, position - 200) : position].rstrip()
            if head.endswith(b"{") and head[:-1].rstrip().endswith(b","):
                return data.rindex(b"{", 0, position)
            before = position
        return None

    def _decoded(self, body: bytes) -> list[TraceEvent] | None:
        """Return the events of some text, or None if it does not consist of complete, valid events."""
        end = body[-_ENDING_BYTES:].rstrip().rstrip(b",")  # only the end: stripping the body would copy it
        body = body[: len(body) - min(len(body), _ENDING_BYTES) + len(end)]
        try:
            return self._decode(b"".join((b"[", body, b"]")))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None

    def _one_by_one(self, body: bytes) -> list[TraceEvent]:
        """Decode events singly, so that a broken one costs no other."""
        assert self._begins is not None  # noqa: S101 - set together with _key
        events = []
        starts = [0, *(match.end() for match in self._begins.finditer(body)), len(body)]
        for start, end in pairwise(starts):
            try:
                events += self._decode(b"[" + body[start:end].rstrip().rstrip(b",") + b"]")
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                self._header.broken += 1
        return events

    def _ending(self, data: bytes) -> tuple[bytes, bytes]:
        """Split the end into complete events and the text after their list (empty if the file ends early)."""
        before = len(data)
        while not self._header.truncated and (position := data.rfind(b"]", 0, before)) >= 0:
            if data[:position].rstrip().endswith((b"}", b"[")) or not data[:position].strip():
                try:
                    self._decode(b"[" + data[:position].rstrip() + b"]")
                except msgspec.MsgspecError:
                    before = position
                    continue
                return data[:position], data[position:]
            before = position
        return (data, b"") if self._decoded(data) is not None else (b"", b"")

    def _foreign(self) -> LogError:
        return LogError(f"{self._path}: no torch profiler trace; a trace holds a list of traceEvents")


def _is_whole(data: bytes) -> bool:
    try:
        json.loads(data)
    except ValueError:
        return False
    return True


def _describe(header: Header, text: bytes) -> None:
    """Read the header's fields from the text before or after the events; all of them are optional."""
    base = re.search(rb'"baseTimeNanoseconds"\s*:\s*(\d+)', text)
    if base:
        header.base_ns = int(base[1])
    host = re.search(rb'"host_name"\s*:\s*"([^"\\]+)"', text)
    if host:
        header.host = host[1].decode(errors="replace")
    devices = _value(text, b'"deviceProperties"')
    if isinstance(devices, list):
        header.devices = [str(device.get("name", "GPU")) for device in devices if isinstance(device, dict)]
    group = _value(text, b'"distributedInfo"')
    if isinstance(group, dict):
        header.rank, header.world_size = _whole(group.get("rank")), _whole(group.get("world_size"))


def _value(text: bytes, key: bytes) -> Any:
    """Return the JSON value of a key, or None."""
    position = text.find(key)
    colon = text.find(b":", position)
    if position < 0 or colon < 0:
        return None
    try:
        return json.JSONDecoder().raw_decode(text[colon + 1 :].decode(errors="replace").lstrip())[0]
    except ValueError:
        return None


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) else None
