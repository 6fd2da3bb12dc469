"""Read a log file, compressed or not, in chunks that end at the end of a line."""

import io
import sys
import zlib
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

from sglang_instrument.errors import LogError
from sglang_instrument.extras import install_extra
from sglang_instrument.regular_files import demand_plausible, open_regular

CHUNK_BYTES: Final = 512 * 1024  # the decoded lines of a chunk fit into the processor's cache
_GZIP: Final = zlib.MAX_WBITS | 16  # of zlib's formats
_COMPRESSED_BYTES: Final = 64 * 1024
_LONGEST_LINE_BYTES: Final = 64 * 2**20  # a thousand times the longest line that our encoder writes


def open_log(path: Path) -> BinaryIO:
    """Open a log file for reading; decompress it if its name ends in .zst or .gz.

    Raises:
        OSError: The file cannot be read, or is not a regular file.
        LogError: The package zstandard is not installed.
    """
    if path.suffix == ".gz":
        return io.BufferedReader(_GzipStream(open_regular(path)))
    if path.suffix != ".zst":
        return open_regular(path)
    try:
        import zstandard
    except ModuleNotFoundError:
        raise LogError(f"zstandard is missing: {install_extra('analysis')}") from None
    return io.BufferedReader(_ZstdStream(zstandard, open_regular(path)))


def lines_between(path: Path, begin: int = 0, end: int | None = None) -> Iterator[bytes]:
    """Yield chunks of a log file, of the bytes between two that begin lines; None stands for the file's end.

    Raises:
        OSError, EOFError, LogError: As `open_log` does, or the file is damaged.
    """
    with open_log(path) as stream:
        if begin:
            stream.seek(begin)
        yield from whole_lines(stream, None if end is None else end - begin)


def readable_lines(path: Path) -> Iterator[bytes]:
    """Yield chunks of a log file until an error; `open_run` has already reported the error."""
    try:
        yield from lines_between(path)
    except (OSError, EOFError, LogError):
        return


def as_marks(names: Iterable[str]) -> list[bytes]:
    """Return names of events and keys as they stand in lines: in quotes."""
    return [f'"{name}"'.encode() for name in names]


def marked_lines(chunk: bytes, marks: Iterable[bytes]) -> bytes:
    """Return the lines of a chunk of whole lines that contain one of the marks."""
    lines: dict[int, int] = {}
    for mark in marks:
        position = chunk.find(mark)
        while position >= 0:
            end = chunk.find(b"\n", position)
            end = len(chunk) if end < 0 else end
            lines[chunk.rfind(b"\n", 0, position) + 1] = end
            position = chunk.find(mark, end)
    return b"\n".join(chunk[start:end] for start, end in sorted(lines.items()))


def whole_lines(stream: BinaryIO, most: int | None = None) -> Iterator[bytes]:
    """Yield chunks that end with a newline, `most` bytes in all; only the last one may end without."""
    rest: list[bytes] = []  # pieces of a line that has not ended yet
    left = sys.maxsize if most is None else most
    while piece := next_bytes(stream, min(CHUNK_BYTES, left)):
        left -= len(piece)
        cut = piece.rfind(b"\n") + 1
        if cut:
            yield b"".join([*rest, piece[:cut]])
            rest = []
        if len(rest) * CHUNK_BYTES < _LONGEST_LINE_BYTES:
            rest.append(piece[cut:])
        else:
            rest[-1] = b"\0"  # drop the rest of this line, and make sure that it counts as no record
    if last := b"".join(rest):
        # Its own chunk: a line torn by a kill would make the reader decode a whole chunk line by line.
        yield last


def next_bytes(stream: BinaryIO, size: int) -> bytes:
    """Return the next bytes, `size` at most; of a damaged file, first all that precede the damage."""
    read = getattr(stream, "read1", stream.read)
    parts: list[bytes] = []
    missing = size
    while missing > 0:
        try:
            part = read(missing)
        except (OSError, EOFError):
            if not parts:
                raise
            break
        if not part:
            break
        parts.append(part)
        missing -= len(part)
    return b"".join(parts)


class _GzipStream(io.RawIOBase):
    """Decompress a gzip file with one or more members; a truncated file yields what can be read."""

    def __init__(self, raw: BinaryIO) -> None:
        self._raw = raw
        self._decoder = zlib.decompressobj(_GZIP)
        self._rest = b""
        self._unpacked_bytes = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while True:
            compressed = self._rest or self._raw.read(_COMPRESSED_BYTES)
            if self._decoder.eof and compressed:
                self._decoder = zlib.decompressobj(_GZIP)
            if not compressed:
                if self._decoder.eof:
                    return 0
                raise OSError("not a complete gzip file: it ends early")
            try:
                text = self._decoder.decompress(compressed, len(buffer))
            except zlib.error as error:
                raise OSError(f"not a complete gzip file: {error}") from None
            self._rest = self._decoder.unconsumed_tail or self._decoder.unused_data
            if text:
                self._unpacked_bytes += len(text)
                demand_plausible(self._unpacked_bytes, self._raw.tell())
                buffer[: len(text)] = text
                return len(text)

    def close(self) -> None:
        self._raw.close()
        super().close()


class _ZstdStream(io.RawIOBase):
    """Decompress a zstd file with one or more frames; a truncated file yields what can be read."""

    def __init__(self, zstandard: Any, raw: BinaryIO) -> None:
        self._raw = raw
        self._broken = zstandard.ZstdError
        self._stream = zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True)
        self._unpacked_bytes = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            count = int(self._stream.readinto(buffer))
        except (self._broken, MemoryError) as error:  # a frame may ask for a window of gigabytes
            raise OSError(f"not a complete zstd file: {error}") from None
        self._unpacked_bytes += count
        demand_plausible(self._unpacked_bytes, self._raw.tell())
        return count

    def close(self) -> None:
        self._raw.close()
        super().close()
