"""Read a torch profiler's file, which may be huge, gzipped or truncated, one piece in memory at a time."""

from __future__ import annotations

import json
import re
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, BinaryIO, Final

from sglang_instrument.errors import LogError
from sglang_instrument.regular_files import demand_plausible, open_regular
from sglang_instrument.traces.events import Singly, TraceEvent, decoded, last_begin

PIECE_BYTES: Final = 2**18  # decoded at once: its events fit into the processor's cache
_HEAD_BYTES: Final = 2**20  # a trace's events begin within these bytes
_LONGEST_EVENT_BYTES: Final = 64 * 2**20
_SMALLEST_BYTES: Final = 2**16  # in more bytes, an event that does not decode is broken, not unfinished
_ENDING_BYTES: Final = 1024  # more than the separator between two events needs
_TAIL_BYTES: Final = 16 * 2**20  # of the text behind the events that is looked at
_GZIP_MAGIC: Final = b"\x1f\x8b"
_GZIP_BITS: Final = 31  # of zlib: a gzip header, and the largest window
_PACKED_BYTES: Final = 2**18
_EVENTS: Final = re.compile(rb'"traceEvents"\s*:\s*\[')


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
    unpacked_bytes = 0
    while packed := raw.read(_PACKED_BYTES):
        while packed:
            try:
                piece = unpack.decompress(packed, PIECE_BYTES)
            except zlib.error:
                header.truncated = True
                return
            begun = True
            unpacked_bytes += len(piece)
            demand_plausible(unpacked_bytes, raw.tell())
            if piece:
                yield piece
            packed = unpack.unconsumed_tail
            if unpack.eof:  # another gzip member may follow
                packed = unpack.unused_data.lstrip(b"\x00")
                unpack, begun = zlib.decompressobj(wbits=_GZIP_BITS), False
    header.truncated = begun


class _Events:
    """Find the list of events in the text, and decode it piece by piece."""

    def __init__(self, path: Path, header: Header) -> None:
        self._path = path
        self._header = header
        self._rest = b""
        self._searched = 0  # bytes of the rest in which no event begins behind another one
        self._is_begun = False
        self._tail: bytes | None = None

    def feed(self, piece: bytes) -> Iterator[list[TraceEvent]]:
        """Yield the complete events so far."""
        if self._tail is not None:
            self._tail = (self._tail + piece)[:_TAIL_BYTES]
            return
        data = self._rest + piece
        if not self._is_begun:
            start = self._begin(data)
            if start is None:
                self._rest = data
                if len(data) > _HEAD_BYTES:
                    raise self._foreign()
                return
            data = data[start:]
        cut = last_begin(data, self._searched)
        if cut is None:
            if len(data) > _LONGEST_EVENT_BYTES:
                raise LogError(f"{self._path}: no event ends within {_LONGEST_EVENT_BYTES >> 20} MiB")
            self._keep(data)
            return
        events = decoded(data[:cut])
        if events is not None:
            self._keep(data[cut:])
            yield events
            return
        # The cut may be inside an event whose arguments look like an event: wait for more text.
        patience = max(2 * PIECE_BYTES, _SMALLEST_BYTES)
        if len(data) <= patience:
            self._rest, self._searched = data, 0
            return
        yield self._singly(data, patience)

    def _keep(self, data: bytes) -> None:
        """Keep text in which no event begins behind another one; only its end may begin to look like that."""
        self._rest, self._searched = data, max(0, len(data) - _ENDING_BYTES)

    def _singly(self, data: bytes, patience: int) -> list[TraceEvent]:
        parts = Singly(data, patience)
        self._header.broken += parts.broken
        self._rest, self._searched, self._tail = parts.rest, 0, parts.tail
        return parts.events

    def close(self) -> Iterator[list[TraceEvent]]:
        """Yield the last events, and read the header's fields after them."""
        if not self._is_begun or (self._header.truncated and not self._rest.strip() and self._tail is None):
            if self._header.truncated:
                raise LogError(
                    f"{self._path}: cut short before its first event; is the profiler still writing it?"
                )
            if b"traceEvents" not in self._rest and not self._rest.lstrip().startswith(b"["):
                raise self._foreign()
            self._header.truncated = not _is_whole(self._rest)
            _describe(self._header, self._rest)
            return
        if self._tail is None:
            yield self._singly(self._rest, 0)
        if self._tail is None:
            self._header.truncated = True
            return
        _describe(self._header, self._tail)

    def _begin(self, data: bytes) -> int | None:
        """Return where the list of events begins, and read the header's fields before it."""
        listed = _EVENTS.search(data)
        start = listed.end() if listed else None
        if start is None and data.lstrip().startswith(b"["):
            start = data.index(b"[") + 1
        if start is not None:
            _describe(self._header, data[:start])
            self._is_begun = True
        return start

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
    base = re.search(rb'"baseTimeNanoseconds"\s*:\s*(\d{1,19})\b', text)
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
