"""Show what each process of a run is: versions, which patches it has, what it dropped and complained of."""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sglang_instrument.analysis.processes import read_process
from sglang_instrument.cli.numbers import NOTHING, count
from sglang_instrument.cli.tables import print_json, print_line, print_table
from sglang_instrument.errors import LogError

HELP: Final = """\
Show every process that instrumentation reached, as it last described itself: when its code was patched, at
its first record, every 10 s while it records, a second after the last record, and when it ended.

    sglang-instrument status logs/gsm8k_600

process   what it writes: its role and rank; "reached" if it recorded nothing so far
state     running, ended, or ended abruptly (killed, os._exit, exec), of processes of this host
patches   events that are recorded, of those whose code was imported
records   how many it recorded; "at least 40" without a final report: killed, or on another host
dropped   records that could not be written

Below the table stand the events that are missing, with the reason, and what processes complained of.
--json prints {"folder", "run_id", "older" (processes of earlier runs), "unreadable", "processes": [...]}."""

#: Folder below `processes` of those that were reached; they are called by host and process id.
REACHED: Final = "reached"
#: State of a process that is gone and did not close its log: killed, os._exit, abort or exec.
ABRUPT: Final = "ended abruptly"
_HIDDEN_VERSIONS: Final = ("sglang_instrument", "torch", "ray", "vllm")  # --json has them


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `status`."""
    parser.add_argument("logs", metavar="LOGS", type=Path, help="the experiment's folder, logs/EXPERIMENT")
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Print a row a process, what is missing, and what was complained of."""
    from sglang_instrument.analysis.run import find_run

    described = read_processes(find_run(args.logs))
    if args.json:
        _print_json(described)
    else:
        _print(described)
    return 0


@dataclass(frozen=True)
class Described:
    """The processes of the newest run in a folder.

    Attributes:
        folder: The experiment's folder.
        run_id: The run that described itself last.
        processes: Its processes by name, such as "worker_3".
        older: Names of processes of earlier runs.
        unreadable: Files that could not be read, with the reason.
    """

    folder: Path
    run_id: str
    processes: dict[str, dict[str, Any]]
    older: list[str]
    unreadable: dict[str, str]


def read_processes(folder: Path) -> Described:
    """Read the files in `processes/` of a run's folder.

    Raises:
        LogError: There is none.
    """
    read: dict[str, dict[str, Any]] = {}
    unreadable: dict[str, str] = {}
    newest = (0.0, "")
    for path in _files(folder / "processes"):
        try:
            facts = read_process(path)
            if path.parent.name == REACHED and _identity(facts) in map(_identity, read.values()):
                continue  # it recorded since, and so described itself again
            read[path.stem] = {**facts, "state": _state(folder, path.stem, facts)}
            newest = max(newest, (path.stat().st_mtime, str(facts.get("run_id"))))
        except (OSError, LogError) as error:
            unreadable[path.name] = str(error)
    if not read:
        raise LogError(f"{folder}: no process described itself in processes/; its logs can still be read")
    run_id = newest[1]
    ours = {name: facts for name, facts in read.items() if str(facts.get("run_id")) == run_id}
    return Described(folder.absolute(), run_id, ours, sorted(read.keys() - ours.keys()), unreadable)


def _files(folder: Path) -> list[Path]:
    """Return the files of processes that recorded, by role and rank, and then of those that did not."""
    recorded = sorted(folder.glob("[!.]*.json"), key=_in_order)
    return [*recorded, *sorted((folder / REACHED).glob("[!.]*.json"))]


def _identity(facts: Mapping[str, Any]) -> tuple[Any, Any, Any]:
    return facts.get("run_id"), facts.get("host"), facts.get("pid")


def _in_order(path: Path) -> tuple[str, int, str]:
    role, _, rank = path.stem.partition("_")
    digits = rank.partition(".")[0]
    return role, int(digits) if digits.isdecimal() else 0, rank


def _state(folder: Path, name: str, facts: Mapping[str, Any]) -> str | None:
    """Return what became of a process; None if it was on another host."""
    from sglang_instrument.analysis.ended import is_alive

    alive = is_alive(folder, name, facts)
    if alive is None:
        return None
    # Versions before `log_closed` do not say it, nor does a process that recorded nothing.
    return "running" if alive else ABRUPT if facts.get("log_closed") is False else "ended"


def _print_json(described: Described) -> None:
    print_json(
        {
            "folder": str(described.folder),
            "run_id": described.run_id,
            "older": described.older,
            "unreadable": described.unreadable,
            "processes": [{"process": name, **facts} for name, facts in described.processes.items()],
        }
    )


def _print(described: Described) -> None:
    columns = (
        *("process", "host", "pid", "state", "actor"),
        *("versions", "patches", "records", "dropped", "notices"),
    )
    rows = [_row(name, facts) for name, facts in described.processes.items()]
    title = f"{described.folder}, run {described.run_id}"
    print_table(columns, rows, title=title, optional=("pid", "host", "actor", "versions", "records"))
    said = (*_missing(described.processes), *_complaints(described.processes))
    for line in (*said, *_ended_abruptly(described.processes), *_left_out(described)):
        print_line(line)


def _row(name: str, facts: Mapping[str, Any]) -> tuple[str, ...]:
    records, patches = facts.get("records", {}), facts.get("patches", [])
    versions = facts.get("versions", {})
    found = sum(patch["state"] == "found" for patch in patches)
    wanted = found + len(_lacking(patches))
    return (
        REACHED if facts.get("role", "") is None else name,
        str(facts.get("host", NOTHING)),
        str(facts.get("pid", NOTHING)),
        facts["state"] or NOTHING,
        str(facts.get("actor") or NOTHING),
        " ".join(f"{name} {version}" for name, version in versions.items() if name not in _HIDDEN_VERSIONS),
        f"{found} of {wanted}" if wanted else NOTHING,
        _at_least(records.get("recorded"), facts),
        _at_least(records.get("dropped"), facts),
        count(sum(said["times"] for said in facts.get("notices", []))),
    )


def _at_least(counted: int | None, facts: Mapping[str, Any]) -> str:
    """Return a count of a process; it may have grown since, unless the process closed its files or runs here.

    A process that runs here describes itself again within 10 s; one of another host may have been killed.
    """
    is_old = counted is not None and facts["state"] != "running" and facts.get("log_closed") is False
    return f"at least {count(counted)}" if is_old else count(counted)


def _lacking(patches: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the patches that the table expects in this version and that are not there."""
    return [
        patch
        for patch in patches
        if patch["state"] not in ("found", "pending") and patch.get("expected", True)
    ]


def _missing(processes: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    where: dict[str, list[str]] = {}
    for name, facts in processes.items():
        for patch in _lacking(facts.get("patches", [])):
            reason = f": {patch['note']}" if "note" in patch else ""
            text = f"{patch['event']} is {patch['state']} in {patch['target']}{reason}"
            where.setdefault(text, []).append(name)
    for text, names in where.items():
        yield f"{text} ({_named(names, processes)})"


def _complaints(processes: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    where: dict[str, list[str]] = {}
    times: dict[str, int] = {}
    for name, facts in processes.items():
        for said in facts.get("notices", []):
            where.setdefault(said["notice"], []).append(name)
            times[said["notice"]] = times.get(said["notice"], 0) + said["times"]
    for text, names in where.items():
        often = f"{times[text]} times, " if times[text] > len(names) else ""
        yield f"notice: {text} ({often}{_named(names, processes)})"


def _ended_abruptly(processes: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    names = [name for name, facts in processes.items() if facts["state"] == ABRUPT]
    if names:
        yield f"{ABRUPT}: {_named(names, processes)}; records of the last 0.1 s may be missing"


def _left_out(described: Described) -> Iterator[str]:
    if described.older:
        yield f"left out, of earlier runs: {', '.join(described.older)}"
    for name, reason in described.unreadable.items():
        yield f"processes/{name} cannot be read: {reason}"


def _named(names: Sequence[str], processes: Mapping[str, object]) -> str:
    if len(names) == len(processes) > 1:
        return f"all {len(names)} processes"
    return ", ".join(names[:8]) + (f" and {len(names) - 8} more" if len(names) > 8 else "")
