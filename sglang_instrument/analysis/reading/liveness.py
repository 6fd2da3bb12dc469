"""Tell whether a run is over, which processes ended abruptly, and what followers saw of silent ones."""

import json
import os
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from sglang_instrument.analysis.reading.files import File, newest_run_filter
from sglang_instrument.analysis.reading.processes import read_process
from sglang_instrument.errors import LogError
from sglang_instrument.regular_files import read_regular
from sglang_instrument.schema import LOG_CLOSED, LOG_OPENED

#: Name, host and id of a process.
Process = tuple[str, str | None, int]

_MOST_BYTES: Final = 2**20
_TEXTS: Final = ("kind", "role", "sentence")
_NUMBERS: Final = ("worker", "step", "since_us", "seen_us")
_SILENT_SEC: Final = 120.0  # a live worker writes at least a report of open spans, after 30 s and 60 s


def is_over(folder: Path, files: Sequence[File], runs: Collection[str]) -> bool:
    """Return whether no process writes to the runs of a folder any more, as far as this host can tell.

    Workers of this host are checked by process id. If none is known, or one ran on another host, a run is
    over once its files have not changed for two minutes.
    """
    alive = [is_alive(folder, name, facts) for name, facts in _described(folder, runs, "worker_*.json")]
    if True in alive:
        return False
    newest_sec = max((file.mtime_ns for file in files), default=0) / 1e9
    return (bool(alive) and None not in alive) or time.time() - newest_sec > _SILENT_SEC


def names_of(processes: Collection[Process]) -> list[str]:
    """Return the names of processes, in order; a name that several had in turn is there for each of them."""
    return sorted(name for name, _, _ in processes)


def gone_without_a_word(
    folder: Path, last: Mapping[Process, tuple[int, bool]], runs: Collection[str], over: bool
) -> list[Process]:
    """Return the processes that are gone and did not close their logs.

    A process that exits normally closes its logs; one that is killed, or ends by `os._exit`, `abort` or
    `exec`, does not. Ray and launchers routinely kill processes, so this alone is no fault.

    Args:
        folder: The run's folder.
        last: The `last_words` of its files.
        runs: Ids of its newest runs.
        over: Whether the run is over; until then, processes of other hosts count as running.
    """
    closed = {process: is_closed for process, (_, is_closed) in last.items()}
    for name, facts in _described(folder, runs, "*.json"):  # may be all that there is: the disk was full
        host, pid = facts.get("host"), facts.get("pid")
        if facts.get("log_closed") is False and isinstance(host, str) and isinstance(pid, int):
            closed.setdefault((name, host, pid), False)
    gone = (False, None) if over else (False,)
    open_still = [process for process, is_closed in closed.items() if not is_closed]
    return [
        process
        for process in open_still
        if is_alive(folder, process[0], {"host": process[1], "pid": process[2]}) in gone
    ]


def last_words(files: Sequence[File]) -> dict[Process, tuple[int, bool]]:
    """Return when each process last opened or closed its log, in Unix microseconds, and whether it closed."""
    counts = newest_run_filter(files)
    last: dict[Process, tuple[int, bool]] = {}
    for file in files:
        process = None
        for control in file.controls:
            if control.event == LOG_OPENED and file.place is not None:
                pid = control.extra.pid if counts(file, control.run_id) else None
                process = None if pid is None else (file.place.stem, control.extra.host, pid)
            if process is not None and control.event in (LOG_OPENED, LOG_CLOSED):
                said = control.time_us, control.event == LOG_CLOSED
                last[process] = max(said, last.get(process, said))
    return last


def _described(folder: Path, runs: Collection[str], pattern: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the name and the self-description of each process of these runs."""
    for path in sorted((folder / "processes").glob(pattern)):
        try:
            facts = read_process(path)
        except LogError:  # `status` reports it
            continue
        if facts.get("run_id") in runs:
            yield path.stem, facts


def is_alive(folder: Path, name: str, facts: Mapping[str, Any]) -> bool | None:
    """Return whether the process that writes files of this name is alive; None if it ran on another host.

    Args:
        folder: The run's folder.
        name: The stem of its files, such as "worker_3".
        facts: Its `host` and `pid`, and `log_closed` if it announced that it writes no more.
    """
    pid = facts.get("pid")
    if facts.get("host") != os.uname().nodename or pid is None or pid <= 0:
        return None
    try:
        os.kill(pid, 0)  # signal 0 only checks
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return not _is_zombie(pid) and (facts.get("log_closed") is True or _may_write(folder, name, pid))


def _may_write(folder: Path, name: str, pid: int) -> bool:
    """Return False if a process does not have this name's lock file open, as every writer has.

    Its pid may belong to another process by now, or the process may run another program (`exec`). We do not
    try to take the lock: that could keep a process of the run from getting it.
    """
    lock = f".locks/{name}.lock"
    if not (folder / lock).exists():  # its files have host and pid in their names, or locks are not supported
        return True
    try:
        descriptors = list(Path(f"/proc/{pid}/fd").iterdir())
    except OSError:  # the process of another user
        return True
    return any(f"/{lock}" in _link(descriptor) for descriptor in descriptors)


def _link(descriptor: Path) -> str:
    """Return the path of an open file of a process, without touching the file: its disk may hang."""
    try:
        return str(descriptor.readlink())
    except OSError:  # closed in the meantime
        return ""


def _is_zombie(pid: int) -> bool:
    """Return whether a process has ended but its parent has not collected it, as happens in containers."""
    try:
        state = Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state in (b"Z", b"X")


def sightings_of(folder: Path, runs: Collection[str]) -> list[dict[str, Any]]:
    """Return what followers saw of these runs, the oldest first.

    Returns:
        run_id, kind ("hang" or "death"), role, worker, step; since_us: when the process wrote last; seen_us:
        when it was last seen so; sentence.
    """
    try:
        paths = sorted((folder / "live").glob("*.json"))
    except OSError:
        return []
    sightings = [sighting for path in paths for sighting in sightings_in(path)]
    return sorted(
        (sighting for sighting in sightings if sighting.get("run_id") in runs),
        key=lambda sighting: sighting["since_us"],
    )


def sightings_in(path: Path) -> list[dict[str, Any]]:
    """Return the sightings in a file; [] if it is missing or none of ours."""
    try:
        sightings = json.loads(read_regular(path, _MOST_BYTES))["sightings"]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return []
    return [sighting for sighting in sightings if _is_whole(sighting)] if isinstance(sightings, list) else []


def _is_whole(sighting: Any) -> bool:
    return (
        isinstance(sighting, dict)
        and all(isinstance(sighting.get(name), str) for name in _TEXTS)
        and all(isinstance(sighting.get(name), int) for name in _NUMBERS)
    )
