"""Show the processes of a run: versions, patches, dropped records, notices."""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from sglang_instrument.analysis.reading.processes_of_run import ABRUPT, REACHED, RunProcesses, read_processes
from sglang_instrument.analysis.tables.column import Cell, Column
from sglang_instrument.cli.columns import NOTHING
from sglang_instrument.cli.numbers import count
from sglang_instrument.cli.select import LOGS_HELP
from sglang_instrument.cli.tables import print_json, print_line, print_table
from sglang_instrument.plain_text import listed

HELP: Final = """\
Show the processes that instrumentation reached, during a run or after it: is each one patched, does it
record, what did it drop. `check` finds torn, missing or unfinished logs; `doctor` explains a missing folder.

    sglang-instrument status logs/gsm8k_600

A process describes itself when its code is patched, every 10 s while it records, and when it ends. Below the
table are the missing events with the reason, and the notices of the processes.
--json prints {"folder", "run_id", "older" (processes of other runs), "unreadable", "processes": [...]}."""

_PROCESSES: Final = (
    Column("process", 'role and rank; "reached" if it has recorded nothing so far'),
    Column("host", "where it runs", gives_way=2),
    Column("pid", "its process id", "count", gives_way=1),
    Column(
        "state",
        "running, ended, or ended abruptly (killed, os._exit, exec); of processes of this host",
        styles={ABRUPT: "red", "running": "green"},
    ),
    Column("actor", "the class of the Ray actor", gives_way=3),
    Column("versions", "of the packages that it uses", gives_way=4),
    Column("patches", "events that it can record, of those whose code it imported"),
    Column(
        "records",
        'how many it recorded; "at least 40" if the final report is missing: killed, or on another host',
        "count",
        gives_way=5,
    ),
    Column("dropped", "records that could not be written", "count"),
    Column("notices", "how many notices it gave; they follow below", "count"),
)
TABLES: Final = {"processes": _PROCESSES}
_HIDDEN_VERSIONS: Final = ("sglang_instrument", "torch", "ray", "vllm")  # --json has them


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `status`."""
    parser.add_argument("logs", metavar="LOGS", type=Path, help=LOGS_HELP)
    parser.add_argument("--json", action="store_true", help="print JSON")


def run(args: argparse.Namespace) -> int:
    """Print a row a process, the missing events and the notices."""
    from sglang_instrument.analysis.run.experiments import find_run

    described = read_processes(find_run(args.logs))
    if args.json:
        _print_json(described)
    else:
        _print(described)
    return 0


def _print_json(described: RunProcesses) -> None:
    print_json(
        {
            "folder": str(described.folder),
            "run_id": described.run_id,
            "older": described.older,
            "unreadable": described.unreadable,
            "processes": [{"process": name, **facts} for name, facts in described.processes.items()],
        }
    )


def _print(described: RunProcesses) -> None:
    rows = [_row(name, facts) for name, facts in described.processes.items()]
    title = f"{described.folder}, run {described.run_id}"
    print_table(_PROCESSES, rows, title=title)
    said = (*_missing(described.processes), *_complaints(described.processes))
    for line in (*said, *_ended_abruptly(described.processes), *_left_out(described)):
        print_line(line)


def _row(name: str, facts: Mapping[str, Any]) -> tuple[Cell, ...]:
    records, patches = facts.get("records", {}), facts.get("patches", [])
    versions = facts.get("versions", {})
    matched = sum(patch["state"] == "found" for patch in patches)
    wanted = matched + len(_lacking(patches))
    return (
        REACHED if facts.get("role", "") is None else name,
        facts.get("host"),
        str(facts.get("pid", NOTHING)),
        facts["state"] or None,
        facts.get("actor") or None,
        " ".join(f"{name} {version}" for name, version in versions.items() if name not in _HIDDEN_VERSIONS),
        f"{matched} of {wanted}" if wanted else None,
        _at_least(records.get("recorded"), facts),
        _at_least(records.get("dropped"), facts),
        count(sum(said["times"] for said in facts.get("notices", []))),
    )


def _at_least(counted: int | None, facts: Mapping[str, Any]) -> str:
    """Return a count; "at least" where the process did not close its log and may have recorded more.

    A running process of this host describes itself again within 10 s, so its count is not marked.
    """
    is_old = counted is not None and facts["state"] != "running" and facts.get("log_closed") is False
    return f"at least {count(counted)}" if is_old else count(counted)


def _lacking(patches: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Return the patches that the table expects in this version and that were not found."""
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


def _left_out(described: RunProcesses) -> Iterator[str]:
    if described.older:
        yield f"not shown, from other runs: {', '.join(described.older)}"
    for name, reason in described.unreadable.items():
        yield f"processes/{name} cannot be read: {reason}"


def _named(names: Sequence[str], processes: Mapping[str, object]) -> str:
    if len(names) == len(processes) > 1:
        return f"all {len(names)} processes"
    return listed(names, 8)
