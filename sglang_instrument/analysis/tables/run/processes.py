"""Processes that instrumentation reached: what each is, and what it recorded."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sglang_instrument.analysis.tables.column import Column
from sglang_instrument.analysis.tables.table import Table

if TYPE_CHECKING:
    import polars as pl

    from sglang_instrument.analysis.run.opening import Run


def _make(run: Run) -> pl.DataFrame:
    from sglang_instrument.analysis.reading.processes_of_run import read_processes
    from sglang_instrument.errors import LogError

    try:
        described = read_processes(run.home).processes
    except LogError:  # a log of an older version, or of another writer
        described = {}
    return PROCESSES.of_rows(_process(name, facts) for name, facts in described.items())


def _process(name: str, facts: dict[str, Any]) -> dict[str, Any]:
    from sglang_instrument.analysis.answers.as_json import as_json

    counts = facts.get("records") or {}
    return {
        "process": name,
        **{key: facts.get(key) for key in ("run_id", "role", "rank", "host", "pid", "actor", "state")},
        **{key: counts.get(key) for key in ("recorded", "dropped")},
        "versions": as_json(facts.get("versions") or {}).decode(),
    }


PROCESSES: Final = Table(
    name="processes",
    row="a process",
    make=_make,
    is_stored=True,
    columns=(
        Column("process", "role and rank, such as worker_3"),
        Column("run_id", "the launch"),
        Column("role", "worker, trainer, server ..."),
        Column("rank", "its rank; null if it has none", "id"),
        Column("host", "where it ran"),
        Column("pid", "process id", "id"),
        Column("actor", "class of its Ray actor"),
        Column("state", "running, ended, ended abruptly; null if it was on another host"),
        Column("recorded", "records that it took", "count"),
        Column("dropped", "records that were lost", "count"),
        Column("versions", "versions of packages", "object"),
    ),
)
