"""Print the outcome of switching profilers as tables."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from sglang_instrument.cli.numbers import NOTHING, seconds
from sglang_instrument.cli.tables import print_line, print_table
from sglang_instrument.profilers.from_outside.checking import Finding
from sglang_instrument.profilers.switching import Outcome
from sglang_instrument.profilers.trace_files import TraceFile


def print_outcomes(outcomes: Sequence[Outcome]) -> None:
    """Print a row a worker, and below the errors and notices of each."""
    rows = [
        (f"{one.number}  {one.url}", one.state, one.engine or NOTHING, seconds(one.sec)) for one in outcomes
    ]
    well = sum(one.ok for one in outcomes)
    failed = "" if well == len(outcomes) else f", {len(outcomes) - well} failed"
    print_table(("worker", "state", "engine", "s"), rows, title=f"{well} of {len(outcomes)} workers{failed}")
    for one in outcomes:
        if one.words:
            print_line(f"worker {one.number}, {one.url}: {one.words}")
    for notice in dict.fromkeys(notice for one in outcomes for notice in one.notices):
        who = [str(one.number) for one in outcomes if notice in one.notices]
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
    print_table(("trace", "size", "end"), rows, title=f"{folder}: {many}, {total}")


def print_captures(rows: Sequence[dict[str, Any]]) -> None:
    """Print the state of each worker and of its newest capture."""
    cells = [
        (
            f"{row['number']}  {row['url']}",
            row["engine"] if row["reached"] else "no answer",
            row["state"],
            seconds(row["since_sec"]),
            str(row["files"] or NOTHING),
            size(row["bytes"]) if row["files"] else NOTHING,
        )
        for row in rows
    ]
    print_table(("worker", "engine", "profile", "age s", "files", "size"), cells, title="profilers")
    for row in rows:
        if row["words"]:
            print_line(f"worker {row['number']}, {row['url']}: {row['words']}")


def print_findings(findings: Sequence[Finding]) -> None:
    """Print what was checked, and below what is wrong."""
    marks = {True: "ok", False: "wrong", None: "?"}
    rows = [
        (f"{'' if one.number is None else f'{one.number}  '}{one.url}", one.what, marks[one.ok])
        for one in findings
    ]
    print_table(("worker", "check", "result"), rows, title="profilers, before they are started")
    for one in findings:
        if one.words and one.ok is not True:
            print_line(f"{one.url}: {one.what}: {one.words}")


def size(count: float) -> str:
    """Return bytes as people read them: 812 B, 1.4 MB."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} GB"
