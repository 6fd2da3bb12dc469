"""Read which processes of a run instrumentation reached, and the state of each."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sglang_instrument.analysis.reading.folders import entries
from sglang_instrument.analysis.reading.launches import Launch, joined
from sglang_instrument.analysis.reading.liveness import is_alive
from sglang_instrument.analysis.reading.processes import read_process
from sglang_instrument.errors import LogError
from sglang_instrument.schema import ENGINE_ROLES

#: Folder in `processes` of the processes that recorded nothing so far, named by host and process id.
REACHED: Final = "reached"
#: State of a process that is gone and did not close its log: killed, os._exit, abort or exec.
ABRUPT: Final = "ended abruptly"


@dataclass(frozen=True)
class RunProcesses:
    """The processes of the newest run in a folder, as they described themselves.

    Attributes:
        folder: The experiment's folder.
        run_id: The newest run; of a launch whose ranks made several ids, the first. A run of servers alone,
            which may outlive other runs, only where there is no other.
        processes: Its processes by name, such as "worker_3".
        older: Names of the processes of other runs.
        unreadable: By file that could not be read, the reason.
    """

    folder: Path
    run_id: str
    processes: dict[str, dict[str, Any]]
    older: list[str]
    unreadable: dict[str, str]


def read_processes(folder: Path) -> RunProcesses:
    """Read the files in `processes/` of a run's folder.

    Raises:
        LogError: There is no such file, or the folder may not be listed.
    """
    read: dict[str, dict[str, Any]] = {}
    unreadable: dict[str, str] = {}
    newest = (False, 0.0, "")
    last: dict[tuple[Any, Any, Any], tuple[float, dict[str, Any]]] = {}
    for path in _files(folder / "processes"):
        try:
            facts = read_process(path)
            if path.parent.name == REACHED and _identity(facts) in map(_identity, read.values()):
                continue  # it has recorded since, and has a file under its role
            read[path.stem] = {**facts, "state": _state(folder, path.stem, facts)}
            written_at = path.stat().st_mtime
            newest = max(newest, _newness(facts, written_at))
            last[_identity(facts)] = max(
                last.get(_identity(facts), (0.0, {})), (written_at, facts), key=_time
            )
        except (OSError, LogError) as error:
            unreadable[path.name] = str(error)
    if not read:
        raise LogError(
            f"{folder}: processes/ holds no readable file; the other commands can still read the logs"
        )
    read = {name: facts | _of_process(last[_identity(facts)][1]) for name, facts in read.items()}
    launch = next((launch for launch in _launches(read, last) if newest[-1] in launch.runs), None)
    runs = [newest[-1]] if launch is None else launch.runs
    ours = {name: facts for name, facts in read.items() if str(facts.get("run_id")) in runs}
    return RunProcesses(folder.absolute(), runs[0], ours, sorted(read.keys() - ours.keys()), unreadable)


def _newness(facts: Mapping[str, Any], written_at: float) -> tuple[bool, float, str]:
    """Return what orders runs: the last to begin among processes that know steps, else the last to write."""
    begin_us = facts.get("started_us")
    knows_steps = facts.get("role") is not None and facts.get("role") not in ENGINE_ROLES
    begun = begin_us / 1e6 if knows_steps and isinstance(begin_us, int) else written_at
    return knows_steps, begun, str(facts.get("run_id"))


def _launches(read: Mapping[str, dict[str, Any]], last: Mapping[Any, tuple[float, Any]]) -> list[Launch]:
    """Return the launches that these processes belong to: see `launches`."""
    runs: dict[str, Launch] = {}
    for facts in read.values():
        begin_us = facts.get("started_us")
        if facts.get("launch") is None or not isinstance(begin_us, int):
            continue
        run_id, end_us = str(facts.get("run_id")), int(last[_identity(facts)][0] * 1e6)
        part = Launch(run_id, begin_us, end_us, runs=[run_id])
        run = runs.setdefault(run_id, part)
        run.begin_us, run.end_us = min(run.begin_us, begin_us), max(run.end_us, end_us)
        run.keys.add(str(facts["launch"]))
        run.launchers.add(str(facts.get("launcher")))
        run.ranks.add(str(facts.get("rank")) if facts.get("rank") is not None else run_id)
    return joined(runs.values())


def _files(folder: Path) -> list[Path]:
    """Return the files of processes that recorded, by role and rank, then those of the others.

    Raises:
        UnreadableFolderError: The folder may not be listed.
    """
    if folder.is_dir():
        entries(folder)
    recorded = sorted(folder.glob("[!.]*.json"), key=_in_order)
    return [*recorded, *sorted((folder / REACHED).glob("[!.]*.json"))]


def _identity(facts: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    return facts.get("run_id"), facts.get("host"), facts.get("pid")


def _time(written: tuple[float, dict[str, Any]]) -> float:
    return written[0]


def _of_process(facts: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the newest description of a process says for all of its workers.

    A process with several workers describes each once, and rewrites only the first while it records.
    """
    return {key: facts[key] for key in ("records", "patches", "notices", "workers") if key in facts}


def _in_order(path: Path) -> tuple[str, int, str]:
    role, _, rank = path.stem.partition("_")
    digits = rank.partition(".")[0]
    return role, int(digits) if digits.isdecimal() else 0, rank


def _state(folder: Path, name: str, facts: Mapping[str, Any]) -> str | None:
    """Return the state of a process; None if it was on another host."""
    alive = is_alive(folder, name, facts)
    if alive is None:
        return None
    # Old versions do not write `log_closed`, nor does a process that recorded nothing.
    return "running" if alive else ABRUPT if facts.get("log_closed") is False else "ended"
