"""Tell whether a run is over, whether anybody still writes to it, and who ended without a word."""

import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from sglang_instrument.analysis.files import File, counting
from sglang_instrument.analysis.processes import read_process
from sglang_instrument.errors import LogError
from sglang_instrument.schema import LOG_CLOSED, LOG_OPENED

_SILENT_SEC: Final = 120.0  # a worker that lives reports after 30 s and 60 s what is still open


def is_over(folder: Path, files: Sequence[File], runs: Collection[str]) -> bool:
    """Return whether nobody writes to the runs of a folder any more, as far as can be told from here.

    A worker of this host is asked whether it lives; where none is known, or one was elsewhere, a run is over
    that nobody wrote to for two minutes.
    """
    alive = [is_alive(folder, name, facts) for name, facts in _described(folder, runs, "worker_*.json")]
    if True in alive:
        return False
    newest_sec = max((file.mtime_ns for file in files), default=0) / 1e9
    return (bool(alive) and None not in alive) or time.time() - newest_sec > _SILENT_SEC


def wordless(folder: Path, files: Sequence[File], runs: Collection[str], over: bool) -> list[str]:
    """Return the names of processes that are gone and did not close their logs.

    A process that exits does close them. One that is killed, or ends by `os._exit`, `abort` or `exec`, does
    not. Ray and launchers kill as a matter of course, so this alone is no fault.

    Args:
        folder: The run's folder.
        files: Its files.
        runs: Ids of the runs that count.
        over: Whether the run is over; before, nobody of another host is said to be gone.
    """
    closed = _logs_closed(files)
    for name, facts in _described(folder, runs, "*.json"):  # of some nothing else is there: the disk was full
        host, pid = facts.get("host"), facts.get("pid")
        if facts.get("log_closed") is False and isinstance(host, str) and isinstance(pid, int):
            closed.setdefault((name, host, pid), False)
    gone = (False, None) if over else (False,)
    open_still = (process for process, is_closed in closed.items() if not is_closed)
    return sorted(
        name for name, host, pid in open_still if is_alive(folder, name, {"host": host, "pid": pid}) in gone
    )


def _logs_closed(files: Sequence[File]) -> dict[tuple[str, str | None, int], bool]:
    """Return whether each process, by name, host and pid, closed its log after it opened a file last."""
    counts = counting(files)
    last: dict[tuple[str, str | None, int], tuple[int, bool]] = {}
    for file in files:
        process = None
        for control in file.controls:
            if control.event == LOG_OPENED and file.place is not None:
                pid = control.extra.pid if counts(file, control.run_id) else None
                process = None if pid is None else (file.place.stem, control.extra.host, pid)
            if process is not None and control.event in (LOG_OPENED, LOG_CLOSED):
                said = control.time_us, control.event == LOG_CLOSED
                last[process] = max(said, last.get(process, said))
    return {process: is_closed for process, (_, is_closed) in last.items()}


def _described(folder: Path, runs: Collection[str], pattern: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the names of processes of the runs that count, and what they said of themselves."""
    for path in sorted((folder / "processes").glob(pattern)):
        try:
            facts = read_process(path)
        except LogError:  # `status` names it
            continue
        if facts.get("run_id") in runs:
            yield path.stem, facts


def is_alive(folder: Path, name: str, facts: Mapping[str, Any]) -> bool | None:
    """Return whether a process is there that writes the files of a name; None if it was on another host.

    Args:
        folder: The run's folder.
        name: Of its files, such as "worker_3".
        facts: Its `host` and `pid`, and `log_closed` if it said that it writes no more.
    """
    pid = facts.get("pid")
    if facts.get("host") != os.uname().nodename or pid is None or pid <= 0:
        return None
    try:
        os.kill(pid, 0)  # asks, and sends nothing
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return not _is_zombie(pid) and (facts.get("log_closed") is True or _may_write(folder, name, pid))


def _may_write(folder: Path, name: str, pid: int) -> bool:
    """Return False if a process does not have the lock file of a name open, as whoever writes has.

    Its number may be another process's by now, or it became another program (`exec`). The lock itself is not
    asked for: that could keep a process of the run from getting it.
    """
    lock = f".locks/{name}.lock"
    if not (folder / lock).exists():  # its files are called by its host and number, or there are no locks
        return True
    try:
        descriptors = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:  # another user's process
        return True
    return any(f"/{lock}" in _link(descriptor) for descriptor in descriptors)


def _link(descriptor: Path) -> str:
    """Return what a descriptor of a process is; the file itself may be on a disk that hangs."""
    try:
        return str(descriptor.readlink())
    except OSError:  # closed meanwhile
        return ""


def _is_zombie(pid: int) -> bool:
    """Return whether a process has ended and nobody waited for it, as happens in containers."""
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state in (b"Z", b"X")
