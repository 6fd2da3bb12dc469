"""Print the outcome of switching profilers as tables."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from sglang_instrument.analysis.tables.column import Column
from sglang_instrument.cli.tables import print_line, print_table
from sglang_instrument.profilers.from_outside.checking import CheckResult
from sglang_instrument.profilers.switching import SwitchOutcome
from sglang_instrument.profilers.trace_files import TraceFile

_URL: Final = Column("worker", "its number and its address")
_ENGINE: Final = Column("engine", "what it says it is: its name and version")
_OUTCOMES: Final = (
    _URL,
    Column("state", "of the profiler, after the request"),
    _ENGINE,
    Column("took", "time until it answered", "time"),
)
_FILES: Final = (
    Column("trace", "the file"),
    Column("size", "as it is on disk", gives_way=1),
    Column("end", "whole, or cut short"),
)
_CAPTURES: Final = (
    _URL,
    _ENGINE,
    Column("profile", "state of its newest capture"),
    Column("age", "time since that capture began", "time"),
    Column("files", "how many traces it has", "count"),
    Column("size", "of them together"),
)
_FINDINGS: Final = (
    _URL,
    Column("check", "what was checked"),
    Column("result", "ok, wrong, or ? where it cannot be told", styles={"ok": "green", "wrong": "red"}),
)
TABLES: Final = {
    "start, stop, capture": _OUTCOMES,
    "traces": _FILES,
    "status": _CAPTURES,
    "check": _FINDINGS,
}


def print_outcomes(outcomes: Sequence[SwitchOutcome]) -> None:
    """Print a row a worker, and below the errors and notices of each."""
    rows = [
        (f"{outcome.number}  {outcome.url}", outcome.state, outcome.engine or None, outcome.sec)
        for outcome in outcomes
    ]
    well = sum(outcome.ok for outcome in outcomes)
    failed = "" if well == len(outcomes) else f", {len(outcomes) - well} failed"
    print_table(_OUTCOMES, rows, title=f"{well} of {len(outcomes)} workers{failed}")
    for outcome in outcomes:
        if outcome.words:
            print_line(f"worker {outcome.number}, {outcome.url}: {outcome.words}")
    for notice in dict.fromkeys(notice for outcome in outcomes for notice in outcome.notices):
        who = [str(outcome.number) for outcome in outcomes if notice in outcome.notices]
        print_line(f"worker {', '.join(who)}: {notice}")


def print_files(files: Sequence[Sequence[TraceFile]]) -> None:
    """Print the traces with their sizes."""
    every = [file for group in files for file in group]
    if not every:
        return
    folder = Path(os.path.commonpath([file.path.parent.parent for file in every]))
    rows = [
        (str(file.path.relative_to(folder)), size(file.size), "cut" if file.whole is False else "whole")
        for file in every
    ]
    many = "1 trace" if len(every) == 1 else f"{len(every)} traces"
    total = size(sum(file.size for file in every))
    print_table(_FILES, rows, title=f"{folder}: {many}, {total}")


def print_captures(rows: Sequence[dict[str, Any]]) -> None:
    """Print the state of each worker and of its newest capture."""
    cells = [
        (
            f"{row['number']}  {row['url']}",
            row["engine"] if row["reached"] else "no answer",
            row["state"],
            row["since_sec"],
            row["files"] or None,
            size(row["bytes"]) if row["files"] else None,
        )
        for row in rows
    ]
    print_table(_CAPTURES, cells, title="profilers")
    for row in rows:
        if row["words"]:
            print_line(f"worker {row['number']}, {row['url']}: {row['words']}")


def print_findings(findings: Sequence[CheckResult]) -> None:
    """Print what was checked, and below what is wrong."""
    marks = {True: "ok", False: "wrong", None: "?"}
    rows = [
        (
            f"{'' if result.number is None else f'{result.number}  '}{result.url}",
            result.what,
            marks[result.ok],
        )
        for result in findings
    ]
    print_table(_FINDINGS, rows, title="profilers, before they are started")
    for result in findings:
        if result.words and result.ok is not True:
            print_line(f"{result.url}: {result.what}: {result.words}")


def size(count: float) -> str:
    """Return bytes as people read them: 812 B, 1.4 MB."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} GB"
