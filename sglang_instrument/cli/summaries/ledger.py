"""Print what the wall time of a step was spent on: its parts, their sum, and the same of its workers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from sglang_instrument.analysis.tables.column import Cell, Column
from sglang_instrument.analysis.tables.rollout.ledger import STEP_PARTS
from sglang_instrument.cli.tables import print_table

_LEAST: Final = 0.01  # share of the wall time from which on an event is worth a line
_MOST_WORKERS: Final = 8  # columns

_Row = Mapping[str, Any]  # of a ledger


def print_ledger(title: str, step: Sequence[_Row], workers: Sequence[_Row]) -> None:
    """Print the ledger of one step.

    Args:
        title: Of the table.
        step: Its rows of `step_ledger`.
        workers: Its rows of `worker_ledger`.
    """
    from sglang_instrument.analysis.ledger.ledger import PARTS

    columns = _columns(step, workers)
    wall = sum(row["sec"] for row in step)
    rows = []
    for part in sorted({row["part"] for row in (*step, *workers)}, key=PARTS.index):
        events = _events(part, columns.values(), wall)
        rows.append(_line(_name(part, events), wall, columns, part))
        if len(events) > 1:
            rows += [_line(f"  {event}", wall, columns, part, event) for event in events]
    rows.append(_line("sum", wall, columns))
    decided = {row["worker"] for row in step}
    shown = [worker for worker in columns if worker is not None]
    # A narrow terminal leaves out the workers that decided nothing first, and of these the last ones first.
    order = sorted(shown, key=lambda worker: (worker in decided, -worker))
    of_workers = (
        Column(f"worker {worker}", "", "time", gives_way=order.index(worker) + 1) for worker in shown
    )
    print_table((*STEP_PARTS.columns[:-1], *of_workers), rows, title=title)


def _columns(step: Sequence[_Row], workers: Sequence[_Row]) -> dict[int | None, list[_Row]]:
    """Return the rows of the step (None), and of the workers that are shown: first those that decided."""
    decided = dict.fromkeys(row["worker"] for row in step if row["worker"] is not None)
    shown = sorted([*decided, *({row["worker"] for row in workers} - decided.keys())][:_MOST_WORKERS])
    return {
        None: list(step),
        **{worker: [row for row in workers if row["worker"] == worker] for worker in shown},
    }


def _events(part: str, columns: Iterable[list[_Row]], wall: float) -> list[str]:
    """Return the events of a part that took a share of the time that is worth a line."""
    events: dict[str, None] = {}
    for rows in columns:
        for event in dict.fromkeys(_event(row) for row in rows if row["part"] == part):
            if event and _sum(rows, part, event) >= _LEAST * wall:
                events[event] = None
    return list(events)


def _event(row: _Row) -> str:
    """Return what a row of a part is named by; of a barrier, by the worker that was waited for."""
    if row["part"] == "barrier":
        return "" if row["waited_for"] is None else f"for worker {row['waited_for']}"
    return row["event"] or ""


def _name(part: str, events: list[str]) -> str:
    return f"{part}: {events[0]}" if len(events) == 1 else part


def _line(
    name: str,
    wall: float,
    columns: Mapping[int | None, list[_Row]],
    part: str | None = None,
    event: str | None = None,
) -> tuple[Cell, ...]:
    of_step = [row for row in columns[None] if part in (None, row["part"]) and event in (None, _event(row))]
    whose = dict.fromkeys(str(row["worker"]) for row in of_step if row["worker"] is not None)
    spent = _sum(columns[None], part, event)
    by_worker = [_sum(rows, part, event) for worker, rows in columns.items() if worker is not None]
    named = ", ".join(whose) if part is not None and whose else None
    return name, spent, spent / wall if wall else None, named, *by_worker


def _sum(rows: Iterable[_Row], part: str | None, event: str | None) -> float:
    return sum(
        float(row["sec"]) for row in rows if part in (None, row["part"]) and event in (None, _event(row))
    )
