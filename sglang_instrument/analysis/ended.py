"""Tell whether a run is over: whether anybody still writes to it."""

import os
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from sglang_instrument.analysis.files import File
from sglang_instrument.analysis.processes import read_process
from sglang_instrument.errors import LogError

_SILENT_SEC: Final = 120.0  # a worker that lives reports after 30 s and 60 s what is still open


def is_over(folder: Path, files: Sequence[File], runs: Collection[str]) -> bool:
    """Return whether nobody writes to the runs of a folder any more, as far as can be told from here.

    A worker of this host is asked whether it lives; where none is known, or one was elsewhere, a run is over
    that nobody wrote to for two minutes.
    """
    alive = [_is_alive(facts) for facts in _workers(folder, runs)]
    if True in alive:
        return False
    newest_sec = max((file.mtime_ns for file in files), default=0) / 1e9
    return (bool(alive) and None not in alive) or time.time() - newest_sec > _SILENT_SEC


def _workers(folder: Path, runs: Collection[str]) -> Iterator[dict[str, Any]]:
    """Yield what the workers of the runs that count said of themselves."""
    for path in sorted((folder / "processes").glob("worker_*.json")):
        try:
            facts = read_process(path)
        except LogError:  # `status` names it
            continue
        if facts.get("run_id") in runs:
            yield facts


def _is_alive(facts: dict[str, Any]) -> bool | None:
    """Return whether a process is there; None if it was on another host."""
    pid = facts.get("pid")
    if facts.get("host") != os.uname().nodename or pid is None or pid <= 0:
        return None
    try:
        os.kill(pid, 0)  # asks, and sends nothing
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return not _is_zombie(pid)


def _is_zombie(pid: int) -> bool:
    """Return whether a process has ended and nobody waited for it, as happens in containers."""
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state in (b"Z", b"X")
