"""Experiments of a folder, and the launches of one experiment."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import PurePath
from typing import Any, Final

from sglang_instrument.analysis.tables.column import Column
from sglang_instrument.analysis.tables.table import Table


def _folder(row: Mapping[str, Any]) -> str:
    return PurePath(row["logs"]).name


def _id(row: Mapping[str, Any]) -> str:
    return str(row["run_id"] or _folder(row))


def _begun(row: Mapping[str, Any]) -> str | None:
    if row["begun_us"] is None:
        return None
    begun = datetime.fromtimestamp(row["begun_us"] / 1e6, timezone.utc)
    return begun.astimezone().strftime("%Y-%m-%d %H:%M")


def _cause(row: Mapping[str, Any]) -> str | None:
    cause: str | None = "unreadable" if row["error"] else row["cause"]
    return cause


_LOGS: Final = Column("logs", "what other commands open", cell=_folder)
_RUN_ID: Final = Column("run_id", "the id of a launch; of several, of the newest", terminal=False)
_OF_LOG: Final = (
    Column(
        "begun_us",
        "when it began; a terminal shows local time",
        "moment",
        3,
        cell=_begun,
        shown_as="words",
        former_title="begun",
    ),
    Column("bytes", "the size of the files that it wrote to", "bytes", 2, title="size"),
    Column("steps", "how many steps have a record", "count"),
    Column("workers", "how many workers logged", "count", gives_way=1),
    Column("median_step_sec", "median time of a step", "time", formerly="step_sec", former_title="step"),
    Column(
        "slowdown_share",
        "by how much the later half of the steps took longer than the first half: 0.1 is 10 % longer; null "
        "for fewer than 6 steps",
        "share",
        formerly="trend",
        former_title="trend",
    ),
    Column("verdict", "in words", terminal=False),
    Column(
        "cause",
        "its first finding, by its name and place; `summary` says it in full",
        cell=_cause,
        former_title="verdict",
    ),
    Column(
        "settings",
        "the settings that --sort and --setting name: a list of values for each, the most frequent first",
        "object",
        terminal=False,
        optional=True,
    ),
    Column("error", "why the folder cannot be read; null if it can", terminal=False),
)
EXPERIMENTS: Final = Table(
    name="experiments",
    row="an experiment of the folder, the newest last; the columns describe the newest launch of each step",
    commands=("runs",),
    columns=(
        _LOGS,
        _RUN_ID,
        Column("runs", "launches that logged to it", "count"),
        *_OF_LOG,
    ),
)
LAUNCHES: Final = Table(
    name="launches",
    row="a launch of one experiment, the newest last",
    commands=("runs",),
    columns=(
        replace(_RUN_ID, meaning="its id", cell=_id, terminal=True, title="run"),
        replace(_LOGS, terminal=False),
        Column("runs", "1", "count", terminal=False),
        *_OF_LOG,
    ),
)
