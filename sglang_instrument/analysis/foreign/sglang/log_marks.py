"""Say which lines of a server's log are read, and take them out of a file, however long it is."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

import polars as pl

from sglang_instrument.analysis.reading.chunks import (
    CHUNK_BYTES,
    marked_lines,
    next_bytes,
    open_log,
    whole_lines,
)
from sglang_instrument.errors import LogError

DECODE: Final = "Decode batch"
PREFILL: Final = "Prefill batch"
BATCHES: Final = (DECODE.encode(), PREFILL.encode())
SETTINGS: Final = b"server_args=ServerArgs("
_SEARCHED_BYTES: Final = (
    2**30
)  # of a file; a log whose first line about a batch comes later is not looked for
_LONGEST_BYTES: Final = 2**20  # of a line that is kept: of a longer one the begin and the end
_CUT: Final = b" ... "


def holds(path: Path, marks: Sequence[bytes]) -> bool:
    """Return whether a file holds one of the marks, at any place within its first gigabyte."""
    overlap = max(map(len, marks)) - 1
    before = b""
    searched = 0
    try:
        with open_log(path) as stream:
            while searched < _SEARCHED_BYTES and (piece := next_bytes(stream, CHUNK_BYTES)):
                text = before + piece
                if any(mark in text for mark in marks):
                    return True
                before = text[-overlap:]
                searched += len(piece)
    except (OSError, EOFError, LogError):
        return False
    return False


def lines_of(path: Path, number: int, marks: Sequence[bytes], unreadable: dict[str, str]) -> pl.DataFrame:
    """Return `file`, which is `number`, and `line` of the lines of a file that hold a mark.

    Args:
        path: The file.
        number: The number of the file among those that are read.
        marks: What a line must hold, one of these.
        unreadable: Takes the reason, by the file's name, where it cannot be read to its end.
    """
    lines: list[str] = []
    try:
        with open_log(path) as stream:
            for chunk in whole_lines(stream):
                marked = marked_lines(chunk, marks)
                lines += [_shortened(line).decode("utf-8", "replace") for line in marked.split(b"\n") if line]
    except (OSError, EOFError, LogError) as error:
        unreadable[path.name] = str(error)
    schema = {"file": pl.Int64, "line": pl.String}
    return pl.DataFrame({"file": [number] * len(lines), "line": lines}, schema=schema)


def _shortened(line: bytes) -> bytes:
    """Return a line without its middle, if it is longer than any that a server prints about a batch."""
    half = _LONGEST_BYTES // 2
    return line if len(line) <= _LONGEST_BYTES else line[:half] + _CUT + line[-half:]
