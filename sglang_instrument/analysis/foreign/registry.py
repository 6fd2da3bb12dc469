"""The foreign formats, one file each, and which of them a path holds."""

import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sglang_instrument.analysis.foreign import (
    areal_traces,
    sglang_requests,
    slime_timers,
    slime_traces,
    verl_console,
    verl_metrics,
    verl_traces,
)
from sglang_instrument.analysis.foreign.records.rows import ForeignLog
from sglang_instrument.analysis.foreign.sglang import server_logs
from sglang_instrument.analysis.reading.chunks import next_bytes, open_log
from sglang_instrument.errors import LogError

_HEAD_BYTES: Final = 64 * 1024
_DEEPEST: Final = 6  # folders below the one that was named: MLflow's files lie that deep
_MOST_FILES: Final = 1_000_000
#: Names of files in a folder whose begin is looked at; a file that is named itself may have any name.
_NAMED: Final = re.compile(r"\.(jsonl?|log|txt|out|err|db|sqlite3?|pt)(\.\d{1,9})?(\.zst|\.gz)?$")


@dataclass(frozen=True)
class Format:
    """A foreign format.

    Attributes:
        name: What it is, in words: "SGLang's per-request export".
        files: What its files are called.
        claims: Whether a file is of this format, by its path and its first bytes.
        read: Reads its files.
    """

    name: str
    files: str
    claims: Callable[[Path, bytes], bool]
    read: Callable[[Sequence[Path]], ForeignLog]


#: In the order of preference: of a folder with several formats, the first one that has a file there is read.
FORMATS: Final = (
    Format(slime_traces.NAME, slime_traces.FILES, slime_traces.claims, slime_traces.read),
    Format(verl_traces.NAME, verl_traces.FILES, verl_traces.claims, verl_traces.read),
    Format(verl_metrics.NAME, verl_metrics.FILES, verl_metrics.claims, verl_metrics.read),
    Format(areal_traces.NAME, areal_traces.FILES, areal_traces.claims, areal_traces.read),
    Format(sglang_requests.NAME, sglang_requests.FILES, sglang_requests.claims, sglang_requests.read),
    Format(server_logs.NAME, server_logs.FILES, server_logs.claims, server_logs.read),
    Format(verl_console.NAME, verl_console.FILES, verl_console.claims, verl_console.read),
    Format(slime_timers.NAME, slime_timers.FILES, slime_timers.claims, slime_timers.read),
)


def find_format(path: Path) -> tuple[Format, list[Path], list[Path]] | None:
    """Return the format of a file, or of the files in a folder; None if it has none of the known ones.

    Returns:
        The format, its files, and the other files.
    """
    every = list(_files_at(path))
    heads = {file: _head(file) for file in every}
    for kind in FORMATS:
        claimed = [file for file in every if kind.claims(file, heads[file])]
        if claimed:
            return kind, claimed, [file for file in every if file not in set(claimed)]
    return None


def _files_at(path: Path) -> Iterator[Path]:
    """Yield the regular files at a path, in the order of their names; hidden ones are left out."""
    if path.is_file():
        yield path
    if not path.is_dir():
        return
    count = 0
    for folder, folders, files in os.walk(path):
        below = Path(folder)
        is_deepest = len(below.relative_to(path).parts) >= _DEEPEST
        folders[:] = [] if is_deepest else sorted(name for name in folders if not name.startswith("."))
        for name in sorted(files):
            count += 1
            if count > _MOST_FILES:
                return
            if not name.startswith(".") and _NAMED.search(name) and (below / name).is_file():
                yield below / name


def _head(path: Path) -> bytes:
    try:
        with open_log(path) as stream:
            return next_bytes(stream, _HEAD_BYTES)
    except (OSError, EOFError, LogError):
        return b""
