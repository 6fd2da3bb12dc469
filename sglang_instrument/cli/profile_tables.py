"""Print the outcome of switching profilers as tables."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from sglang_instrument.analysis.tables.profiling.switching import CAPTURES, CHECKS, FILES, OUTCOMES
from sglang_instrument.cli.answer import Key
from sglang_instrument.cli.columns import size
from sglang_instrument.cli.tables import print_line, print_rows
from sglang_instrument.profilers.from_outside.checking import CheckResult
from sglang_instrument.profilers.switching import SwitchOutcome
from sglang_instrument.profilers.trace_files import TraceFile

TABLES: Final = (OUTCOMES, FILES, CAPTURES, CHECKS)
ANSWER: Final = {
    "ok": Key("boolean", "check, capture: whether all went well", optional=True),
    "folder": Key(
        "string", "start, capture: of the traces; null if this machine cannot see it", optional=True
    ),
    "workers": Key(OUTCOMES, optional=True),
    "stopped": Key(OUTCOMES, "capture: a worker whose profiler was stopped", optional=True),
    "requests": Key(
        {
            "asked": Key("integer", "probe requests that were sent"),
            "answered": Key("integer", "of these, how many were answered"),
        },
        "capture: requests that were sent to be profiled",
        optional=True,
    ),
    "files": Key(FILES, optional=True),
    "captures": Key(CAPTURES, optional=True),
    "checks": Key(CHECKS, optional=True),
}


def print_outcomes(outcomes: Sequence[SwitchOutcome]) -> None:
    """Print a row a worker, and below the errors and notices of each."""
    well = sum(outcome.ok for outcome in outcomes)
    failed = "" if well == len(outcomes) else f", {len(outcomes) - well} failed"
    rows = [outcome.as_json() for outcome in outcomes]
    cells = {"engine": lambda row: row["engine"] or None}
    print_rows(OUTCOMES, rows, title=f"{well} of {len(outcomes)} workers{failed}", cells=cells)
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
    many = "1 trace" if len(every) == 1 else f"{len(every)} traces"
    total = size(sum(file.size for file in every))
    cells = {"path": lambda row: str(Path(row["path"]).relative_to(folder))}
    print_rows(FILES, rows_of_files(files), title=f"{folder}: {many}, {total}", cells=cells)


def print_captures(rows: Sequence[dict[str, Any]]) -> None:
    """Print the state of each worker and of its newest capture."""
    cells = {
        "files": lambda row: row["files"] or None,
        "bytes": lambda row: row["bytes"] if row["files"] else None,
    }
    print_rows(CAPTURES, rows, title="profilers", cells=cells)
    for row in rows:
        if row["words"]:
            print_line(f"worker {row['number']}, {row['url']}: {row['words']}")


def print_findings(findings: Sequence[CheckResult]) -> None:
    """Print what was checked, and below what is wrong."""
    print_rows(CHECKS, list(map(vars, findings)), title="profilers, before they are started")
    for result in findings:
        if result.words and result.ok is not True:
            print_line(f"{result.url}: {result.what}: {result.words}")


def rows_of_files(files: Sequence[Sequence[TraceFile]]) -> list[dict[str, Any]]:
    """Return a row a trace, as its table declares it."""
    return [
        {"path": str(file.path), "bytes": file.size, "whole": file.whole} for group in files for file in group
    ]
