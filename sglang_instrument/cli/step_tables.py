"""Print a row a step, or a row a worker of a step: its requests, and the largest parts of its ledger."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from sglang_instrument.cli.columns import Cell, Column
from sglang_instrument.cli.tables import print_table

BARRIER: Final = "barrier"
#: Share of a row's wall time from which on a part of the ledger has a column.
LEAST: Final = 0.05
#: Parts that have a column in any case.
ALWAYS: Final = ("engine", "tool")
#: What the parts of the ledger are; waiting at barriers has a column of its own.
PARTS: Final = {
    "late start": "it began after the first worker did",
    "preprocess": "spans of the phase preprocess, within requests and outside",
    "waiting for own requests": "a request waited until fewer of its worker were in flight",
    "engine": "calls of the engine",
    "tool": "tools",
    "interaction": "interactions with the environment",
    "environment": "setting sandboxes and environments up, resetting them, and taking them down",
    "reward": "rewards",
    "blocked loop": "the event loop was blocked, whatever else ran",
    "postprocess": "spans of the phase postprocess, within requests and outside",
    "broadcast": "sending objects to other workers",
    "cache": "flushing the engine's caches",
    "weights": "updating the engine's weights",
    "other": "spans of the phase other: those of no other part",
    "between steps": "from its end to the begin of the next step",
    "unaccounted": "in a step, request or turn, but in no part of it",
}
_REQUESTS: Final = (
    Column("requests", "how many ended", "count", gives_way=5),
    Column("tokens", "of all replies", "count", gives_way=3),
    Column("p50", "half of the requests took at most this long", "time", gives_way=1),
    Column("p99", "99 % of the requests took at most this long", "time", gives_way=4),
    Column("max", "the longest request", "time", gives_way=2),
    Column("tail", "share of the time in which only the last 20 % of the requests run", "share"),
)
_REST: Final = Column(
    "rest",
    f"all parts without a column, each below {LEAST:.0%}; the parts and `rest` add up to 100",
    "share",
)
_STEP: Final = (
    Column("step", "its number"),
    Column("time", "of the longest worker", "time"),
    Column("wall", "from the step's begin to the begin of the next step", "time"),
    *_REQUESTS,
    Column(BARRIER, "share of all workers' wall time: waiting for another worker", "share"),
)
_WORKER: Final = (
    Column("worker", "its rank"),
    Column("time", "from its begin to its end", "time"),
    Column("busy", "the time without barriers", "time"),
    *_REQUESTS,
    Column(BARRIER, "share of its wall time: waiting for another worker", "share"),
)


def _of_parts(names: Sequence[str], first: str) -> list[Column]:
    return [
        Column(name, f"{first}: {PARTS[name]}" if number == 0 else f"the same: {PARTS[name]}", "share")
        for number, name in enumerate(names)
    ]


_OF_STEPS: Final = "share of the wall time, along the path that decided how long the step took"
_OF_WORKERS: Final = "share of the worker's wall time"
TABLES: Final = {
    f"steps; a part of the ledger has a column if it has {LEAST:.0%} of a step": (
        *_STEP,
        *_of_parts(list(PARTS), _OF_STEPS),
        _REST,
    ),
    "--step N: its workers; barrier, parts and rest add up to 100": (
        *_WORKER,
        *_of_parts(list(PARTS), _OF_WORKERS),
        _REST,
    ),
}

_Row = Mapping[str, Any]
_Spent = Mapping[str, float]  # seconds by part


def print_steps(
    title: str, rows: Sequence[_Row], spent: Mapping[int, _Spent], waits: Mapping[int, _Spent]
) -> None:
    """Print a row a step.

    Args:
        title: Of the table.
        rows: Of `step_table`.
        spent: What each step's wall time was spent on, along the path that decided it.
        waits: What the wall time of all its workers was spent on.
    """
    parts = _with_columns(spent.values())
    cells = []
    for row in rows:
        own = spent.get(row["step"], {})
        waiting = _share(waits.get(row["step"], {}), BARRIER)
        cells.append((row["step"], *_cells(row, sum(own.values()), waiting), *_shares(own, parts)))
    print_table((*_STEP, *_of_parts(parts, _OF_STEPS), _REST), cells, title=title)


def print_workers(title: str, rows: Sequence[_Row], spent: Mapping[int, _Spent]) -> None:
    """Print a row a worker of one step; `spent` is what the wall time of each was spent on."""
    parts = _with_columns(spent.values())
    cells = []
    for row in rows:
        own = spent.get(row["worker"], {})
        waiting = _share(own, BARRIER)
        *shares, rest = _shares(own, parts)
        requests = _cells(row, row["busy_sec"], waiting)
        cells.append((row["worker"], *requests, *shares, max(0.0, rest - waiting)))
    print_table((*_WORKER, *_of_parts(parts, _OF_WORKERS), _REST), cells, title=title)


def _with_columns(spent: Iterable[_Spent]) -> list[str]:
    large = {part for own in spent for part in own if _share(own, part) >= LEAST}
    return [part for part in PARTS if part in large or part in ALWAYS]


def _cells(row: _Row, second: float, waiting: float) -> tuple[Cell, ...]:
    names = ("requests", "response_tokens", "p50_sec", "p99_sec", "max_sec", "tail")
    return row["duration_sec"], second, *(row[name] for name in names), waiting


def _shares(spent: _Spent, parts: Sequence[str]) -> list[float]:
    """Return the shares of the parts, and of all other parts together."""
    shares = [_share(spent, part) for part in parts]
    return [*shares, max(0.0, 1 - sum(shares))]


def _share(spent: _Spent, part: str) -> float:
    return spent.get(part, 0.0) / (sum(spent.values()) or 1.0)
