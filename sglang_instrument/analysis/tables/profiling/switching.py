"""How the engines' profilers were switched: outcomes, captures, traces, checks before the start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sglang_instrument.analysis.tables.column import Column
from sglang_instrument.analysis.tables.table import Table

_COMMANDS: Final = ("profile",)


def _worker(row: Mapping[str, Any]) -> str:
    return row["url"] if row["number"] is None else f"{row['number']}  {row['url']}"


def _end(row: Mapping[str, Any]) -> str:
    return "cut" if row["whole"] is False else "whole"


def _answering(row: Mapping[str, Any]) -> str:
    return row["engine"] if row["reached"] else "no answer"


def _result(row: Mapping[str, Any]) -> str:
    return {True: "ok", False: "wrong", None: "?"}[row["ok"]]


_WORKER: Final = (
    Column("worker", "its number and its address", cell=_worker, json=False, frame=False),
    Column("number", "of the worker, from 0", "id", terminal=False),
    Column("url", "its address", terminal=False),
)
_WORDS: Final = Column("words", "what a person should know; a terminal prints it below", terminal=False)
OUTCOMES: Final = Table(
    name="profiler_outcomes",
    row="a worker whose profiler was started or stopped (start, stop, capture)",
    commands=_COMMANDS,
    columns=(
        *_WORKER,
        Column("ok", "whether it succeeded", "flag", terminal=False),
        Column("state", "of the profiler: started, stopped, idle (nothing ran) or failed"),
        Column("engine", "what it says it is: its name and version"),
        _WORDS,
        Column("profile_id", "of its capture; empty for stop", terminal=False),
        Column("folder", "of the traces, on its own machine", terminal=False),
        Column("notices", "requested options that it does not support", "list", terminal=False),
        Column("sec", "time until it answered", "time", title="took"),
        Column("ranks", "how many ranks it has; null if it does not tell", "count", terminal=False),
    ),
)
CAPTURES: Final = Table(
    name="profiler_captures",
    row="a worker and its newest capture (status)",
    commands=_COMMANDS,
    columns=(
        *_WORKER,
        Column("engine", "what it says it is: its name and version", cell=_answering),
        Column("reached", "whether it answered", "flag", terminal=False),
        _WORDS,
        Column("model", "what it serves", terminal=False),
        Column("state", "of its newest capture", former_title="profile"),
        Column("since_sec", "time since that capture began", "time", title="age"),
        Column("folder", "of its traces", terminal=False),
        Column("files", "how many traces it has", "count"),
        Column("bytes", "of them together", "bytes", title="size"),
    ),
)
FILES: Final = Table(
    name="profiler_traces",
    row="a trace (stop, capture)",
    commands=_COMMANDS,
    columns=(
        Column("path", "the file", title="trace"),
        Column("bytes", "its size on disk", "bytes", gives_way=1, title="size"),
        Column(
            "whole",
            "whether its end is there; null if that cannot be checked",
            "flag",
            cell=_end,
            title="end",
        ),
    ),
)
CHECKS: Final = Table(
    name="profiler_checks",
    row="a check of a worker, before profilers are started (check)",
    commands=_COMMANDS,
    columns=(
        *_WORKER,
        Column("what", "what was checked", title="check"),
        Column(
            "ok",
            "whether it is; null where it cannot be told",
            "flag",
            cell=_result,
            title="result",
            styles={"ok": "green", "wrong": "red"},
        ),
        _WORDS,
    ),
)
