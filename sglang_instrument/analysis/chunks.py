"""Read a log file, packed or not, in chunks that end where lines end."""

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Final

from sglang_instrument.errors import LogError
from sglang_instrument.regular import open_regular

CHUNK_BYTES: Final = 512 * 1024  # lines of so many bytes, decoded, fit into a processor's cache
_LONGEST_LINE_BYTES: Final = 64 * 2**20  # a thousand times what a writer writes


def open_log(path: Path) -> BinaryIO:
    """Open a log file for reading, unpacked where its name ends in .zst.

    Raises:
        OSError: It cannot be read, or is no regular file.
        LogError: What unpacks it is not installed.
    """
    if path.suffix != ".zst":
        return open_regular(path)
    try:
        import zstandard
    except ModuleNotFoundError:
        raise LogError("zstandard is missing: pip install 'sglang-instrument[analysis]'") from None
    return io.BufferedReader(_ZstdStream(zstandard, open_regular(path)))


def readable_lines(path: Path) -> Iterator[bytes]:
    """Yield the chunks of a log file as far as it can be read; opening the run has named what cannot."""
    try:
        with open_log(path) as stream:
            yield from whole_lines(stream)
    except (OSError, EOFError, LogError):
        return


def whole_lines(stream: BinaryIO) -> Iterator[bytes]:
    """Yield chunks that end with a line; the last one may end without a newline."""
    rest: list[bytes] = []  # of a line longer than what is read at once
    while piece := stream.read(CHUNK_BYTES):
        cut = piece.rfind(b"\n") + 1
        if cut:
            yield b"".join([*rest, piece[:cut]])
            rest = []
        if len(rest) * CHUNK_BYTES < _LONGEST_LINE_BYTES:
            rest.append(piece[cut:])
        else:
            rest[-1] = b"\0"  # the rest of it is not kept, and this makes sure that it counts as no record
    if last := b"".join(rest):
        # Apart from its neighbours: what a kill tore must not send a whole chunk the slow way.
        yield last


class _ZstdStream(io.RawIOBase):
    """A zstd file, frames one after the other; one cut short gives what it holds."""

    def __init__(self, zstandard: Any, raw: BinaryIO) -> None:
        self._raw = raw
        self._broken = zstandard.ZstdError
        self._stream = zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        try:
            return int(self._stream.readinto(buffer))
        except self._broken as error:
            raise OSError(f"not whole zstd: {error}") from None

    def close(self) -> None:
        self._raw.close()
        super().close()
