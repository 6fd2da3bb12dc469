"""Print a row a step, or a row a worker of a step: its requests, and the largest parts of its ledger."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from sglang_instrument.analysis.tables.rollout.parts import ALWAYS, LEAST, PARTS, SMALLER
from sglang_instrument.analysis.tables.rollout.steps import STEPS
from sglang_instrument.analysis.tables.rollout.workers import WORKERS
from sglang_instrument.cli.tables import print_rows

BARRIER: Final = "barrier"

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
    shown = []
    for row in rows:
        of_step = spent.get(row["step"], {})
        waiting = _share(waits.get(row["step"], {}), BARRIER)
        times = {"to_next_step_sec": sum(of_step.values()), "workers_waited_share": waiting}
        shown.append({**row, **times, **_shares(of_step, parts)})
    print_rows(STEPS, shown, title=title)


def print_workers(title: str, rows: Sequence[_Row], spent: Mapping[int, _Spent]) -> None:
    """Print a row a worker of one step; `spent` is what the wall time of each was spent on."""
    parts = _with_columns(spent.values())
    shown = []
    for row in rows:
        of_worker = spent.get(row["worker"], {})
        waiting, shares = _share(of_worker, BARRIER), _shares(of_worker, parts)
        smaller = max(0.0, shares[SMALLER] - waiting)
        shown.append({**row, BARRIER: waiting, **shares, SMALLER: smaller})
    print_rows(WORKERS, shown, title=title)


def _with_columns(spent: Iterable[_Spent]) -> list[str]:
    large = {part for row in spent for part in row if _share(row, part) >= LEAST}
    return [part for part in PARTS if part in large or part in ALWAYS]


def _shares(spent: _Spent, parts: Sequence[str]) -> dict[str, float]:
    """Return the shares of the parts, and of all other parts together."""
    shares = {part: _share(spent, part) for part in parts}
    return {**shares, SMALLER: max(0.0, 1 - sum(shares.values()))}


def _share(spent: _Spent, part: str) -> float:
    return spent.get(part, 0.0) / (sum(spent.values()) or 1.0)
