"""Print a row a day or a week of a long run: its steps, its speed, the largest parts of its ledger."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from sglang_instrument.analysis.tables.rollout.parts import ALWAYS, LEAST, PARTS, SMALLER
from sglang_instrument.analysis.tables.rollout.periods import PERIODS
from sglang_instrument.cli.tables import print_line, print_rows

_Row = dict[str, Any]


def as_json(row: _Row) -> _Row:
    """Return a row of `period_table` with its parts as an object, without those that took no time."""
    from sglang_instrument.analysis.ledger.ledger import PARTS as OF_LEDGER
    from sglang_instrument.analysis.long_runs.periods import share_of

    shares = {part: row[share_of(part)] for part in OF_LEDGER if row[share_of(part)]}
    columns = {name: value for name, value in row.items() if not name.startswith("share_")}
    return {**columns, "begin": row["begin"].isoformat(), "parts": shares}


def json_of(by: str, rows: Sequence[_Row]) -> _Row:
    """Return what --json prints of the rows of `period_table`."""
    return {"by": by, "timezone": "UTC", "periods": PERIODS.in_json(map(as_json, rows))}


def print_periods(title: str, rows: Sequence[_Row]) -> None:
    """Print a row a period, from rows of `period_table`."""
    json_rows = [as_json(row) for row in rows]
    large = {part for row in json_rows for part, share in row["parts"].items() if share >= LEAST}
    parts = [part for part in PARTS if part in large or part in ALWAYS]
    shown = []
    for row in json_rows:
        known: dict[str, float] = row["parts"]
        shares = {part: known.get(part, 0.0) if known else None for part in parts}
        smaller = max(0.0, 1 - sum(known.get(part, 0.0) for part in parts)) if known else None
        shown.append({**row, **shares, SMALLER: smaller})
    print_rows(PERIODS, shown, title=title)
    print_line("days and weeks are those of UTC; a week begins on Monday")
