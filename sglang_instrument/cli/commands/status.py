"""Show the processes of a run: versions, patches, dropped records, notices."""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from sglang_instrument.analysis.reading.processes_of_run import ABRUPT, REACHED, RunProcesses, read_processes
from sglang_instrument.analysis.tables.column import Cell
from sglang_instrument.analysis.tables.run.process_states import STATES
from sglang_instrument.cli.answer import FOLDER, Key
from sglang_instrument.cli.numbers import count
from sglang_instrument.cli.select import LOGS_HELP
from sglang_instrument.cli.tables import print_json, print_line, print_rows
from sglang_instrument.plain_text import listed

HELP: Final = """\
Show the processes that instrumentation reached, during a run or after it: is each one patched, does it
record, what did it drop. `check` finds torn, missing or unfinished logs; `doctor` explains a missing folder.

    sglang-instrument status logs/gsm8k_600

A process describes itself when its code is patched, every 10 s while it records, and when it ends. Below the
table are the missing events with the reason, and the notices of the processes.

    process   host   pid    state    versions                   patches   recorded  dropped  notices
    worker_0  node1  41200  running  sglang 0.5.4.post1 verl..  34 of 36     18,204        0        0
    worker_1  node1  41201  running  sglang 0.5.4.post1 verl..  34 of 36     17,981        0        0"""

TABLES: Final = (STATES,)
ANSWER: Final = {
    "folder": FOLDER,
    "run_id": Key("string", "the newest run"),
    "older": Key("array", "names of the processes of other runs"),
    "unreadable": Key("object", "why a file in processes/ could not be read, by file"),
    "processes": Key(STATES, "a row is a process, with all that its file in processes/ says"),
}
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
    rows = [_row(process, facts) for process, facts in described.processes.items()]
    title = f"{described.folder}, run {described.run_id}"
    print_rows(STATES, rows, title=title)
    said = (
        *_missing(described.processes),
        *_never_run(described.processes),
        *_complaints(described.processes),
    )
    for line in (*said, *_ended_abruptly(described.processes), *_left_out(described)):
        print_line(line)


def _row(process: str, facts: Mapping[str, Any]) -> dict[str, Cell]:
    records, patches = facts.get("records", {}), facts.get("patches", [])
    versions = facts.get("versions", {})
    matched = sum(patch["state"] == "found" and not patch.get("never_runs_with") for patch in patches)
    wanted = matched + len(_lacking(patches))
    shown = [f"{name} {version}" for name, version in versions.items() if name not in _HIDDEN_VERSIONS]
    return {
        "process": REACHED if facts.get("role", "") is None else process,
        "host": facts.get("host"),
        "pid": facts.get("pid"),
        "state": facts["state"] or None,
        "actor": facts.get("actor") or None,
        "versions": " ".join(shown) or None,
        "patches": f"{matched} of {wanted}" if wanted else None,
        "recorded": _at_least(records.get("recorded"), facts),
        "dropped": _at_least(records.get("dropped"), facts),
        "notices": count(sum(notice["times"] for notice in facts.get("notices", []))),
    }


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
        if patch["state"] not in ("found", "pending")
        and patch.get("expected", True)
        and not patch.get("never_runs_with")
    ]


def _never_run(processes: Mapping[str, Mapping[str, Any]]) -> Iterator[str]:
    """Say which functions a mode of the trainer leaves out, so that nobody waits for their events."""
    where: dict[str, list[str]] = {}
    for name, facts in processes.items():
        events: dict[str, None] = {}
        for patch in facts.get("patches", []):
            if variable := patch.get("never_runs_with"):
                events[f"{patch['table']} {patch['event']}"] = None
        if events:
            where.setdefault(f"with {variable} set, never recorded: {', '.join(events)}", []).append(name)
    for text, names in where.items():
        yield f"{text} ({_named(names, processes)})"


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
