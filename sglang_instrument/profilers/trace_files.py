"""Find the files that profilers wrote, and tell whether they are complete and no longer grow."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sglang_instrument.regular_files import open_regular

#: Files of the engines' profilers: torch's traces, CUDA memory snapshots, ROCm's and nsys' reports.
SUFFIXES: Final = (".json.gz", ".json", ".pickle", ".rpd", ".nsys-rep")
POLL_SEC: Final = 0.2
_QUIET_SEC: Final = 1.0  # without growth for this long, a file whose end cannot be checked is complete


@dataclass(frozen=True)
class TraceFile:
    """A profiler's file; `whole` tells whether its end is there, None if that cannot be checked."""

    path: Path
    size: int
    whole: bool | None


def files_in(folder: str | Path) -> list[TraceFile]:
    """Return the profilers' files below a folder, the oldest first; none if there is no such folder."""
    dated_paths = []
    for path in Path(folder).rglob("*"):
        try:
            if path.name.endswith(SUFFIXES) and path.is_file() and path.name != NOTE:
                dated_paths.append((path.stat().st_mtime, path))
        except OSError:  # deleted in the meantime
            continue
    return [file for _, path in sorted(dated_paths) if (file := _file(path)) is not None]


NOTE: Final = "profile.json"


def _file(path: Path) -> TraceFile | None:
    try:
        size = path.stat().st_size
        return TraceFile(path, size, _is_whole(path, size))
    except OSError:
        return None


def _is_whole(path: Path, size: int) -> bool | None:
    """Return whether the end of a file is there, by its last bytes only: it may be gigabytes large."""
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
    """Return whether a gzip file is complete: decompress a small one; a large one must have stopped growing.

    A gzip file ends with a checksum, which can be checked only by reading all of the file.
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
    """Wait until each folder has `wanted` files that are complete and no longer grow; return what is there.

    Args:
        folders: One per worker.
        timeout_sec: After this time, return what is there, complete or not.
        progress: Called with the number of folders done, of all folders, and the bytes so far.
        wanted: Files per folder; an engine writes one per rank.
    """
    asked = [Path(folder) for folder in folders]
    deadline = time.monotonic() + timeout_sec
    before: list[list[int]] = [[] for _ in asked]
    since = [time.monotonic() for _ in asked]
    while True:
        now = time.monotonic()
        files_by_folder = [files_in(folder) for folder in asked]
        done = 0
        for index, files in enumerate(files_by_folder):
            sizes = [file.size for file in files]
            if sizes != before[index]:
                before[index], since[index] = sizes, now
            present = len(files) >= wanted and all(file.whole is not False for file in files)
            certain = all(file.whole for file in files) or now - since[index] >= _QUIET_SEC
            done += present and certain
        progress(done, len(asked), sum(map(sum, before)))
        if done == len(asked) or now >= deadline:
            return files_by_folder
        time.sleep(min(POLL_SEC, max(0.0, deadline - now)))
