"""Find the files that profilers wrote, and say whether they are whole and grow no more."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sglang_instrument.regular import open_regular

#: What the engines' profilers leave: torch's traces, CUDA's memory, ROCm's.
SUFFIXES: Final = (".json.gz", ".json", ".pickle", ".rpd", ".nsys-rep")
POLL_SEC: Final = 0.2
_GZIP_START, _GZIP_END = b"\x1f\x8b", 8  # its magic; and how long what follows the data is
_QUIET_SEC: Final = 1.0  # of no growth, for files whose end cannot be told


@dataclass(frozen=True)
class TraceFile:
    """A file of a profiler: `whole` if its end is there, None where nobody can tell."""

    path: Path
    size: int
    whole: bool | None


def files_in(folder: str | Path) -> list[TraceFile]:
    """Return the profilers' files below a folder, the oldest first; none if there is no such folder."""
    found = []
    for path in Path(folder).rglob("*"):
        try:
            if path.name.endswith(SUFFIXES) and path.is_file() and path.name != NOTE:
                found.append((path.stat().st_mtime, path))
        except OSError:  # it was there a moment ago
            continue
    return [file for _, path in sorted(found) if (file := _file(path)) is not None]


NOTE: Final = "profile.json"


def _file(path: Path) -> TraceFile | None:
    try:
        size = path.stat().st_size
        return TraceFile(path, size, _is_whole(path, size))
    except OSError:
        return None


def _is_whole(path: Path, size: int) -> bool | None:
    """Say whether the end of a file is there, from its last bytes alone: it may be gigabytes."""
    if size == 0:
        return False
    if path.name.endswith(".gz"):
        return _gzip_is_whole(path, size)
    if path.name.endswith(".json"):
        with open_regular(path) as file:
            file.seek(max(0, size - 64))
            return file.read().rstrip().endswith((b"}", b"]"))
    return None


def _gzip_is_whole(path: Path, size: int) -> bool:
    """Decompress a small file; of a large one, believe that a gzip that grows no more has its end.

    The end of a gzip is a checksum, which only reading all of it can prove.
    """
    if size > 4 * 2**20:
        return time.time() - path.stat().st_mtime > _QUIET_SEC
    import gzip
    import zlib

    try:
        with open_regular(path) as packed, gzip.open(packed) as file:
            while file.read(2**20):
                pass
    except (OSError, EOFError, zlib.error):
        return False
    return True


def wait_for_files(
    folders: Iterable[str | Path],
    *,
    timeout_sec: float,
    progress: Callable[[int, int, int], object] = lambda done, wanted, size: None,
    wanted: int = 1,
) -> list[list[TraceFile]]:
    """Wait until each folder has `wanted` files that are whole and grow no more; return what is there.

    Args:
        folders: One a worker.
        timeout_sec: Afterwards, what is there is returned, whole or not.
        progress: Is told how many folders are done, of how many, and the bytes that are there.
        wanted: Files a folder; an engine writes one a rank.
    """
    asked = [Path(folder) for folder in folders]
    deadline = time.monotonic() + timeout_sec
    before: list[list[int]] = [[] for _ in asked]
    since = [time.monotonic() for _ in asked]
    while True:
        now = time.monotonic()
        found = [files_in(folder) for folder in asked]
        done = 0
        for index, files in enumerate(found):
            sizes = [file.size for file in files]
            if sizes != before[index]:
                before[index], since[index] = sizes, now
            there = len(files) >= wanted and all(file.whole is not False for file in files)
            sure = all(file.whole for file in files) or now - since[index] >= _QUIET_SEC
            done += there and sure
        progress(done, len(asked), sum(map(sum, before)))
        if done == len(asked) or now >= deadline:
            return found
        time.sleep(min(POLL_SEC, max(0.0, deadline - now)))
