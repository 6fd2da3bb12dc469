"""Print a row a day or a week of a long run: its steps, its speed, the largest parts of its ledger."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sglang_instrument.analysis.tables.column import Column
from sglang_instrument.analysis.tables.rollout.parts import ALWAYS, LEAST, PARTS
from sglang_instrument.cli.summaries.steps import BARRIER
from sglang_instrument.cli.tables import print_line, print_table

_PERIOD: Final = (
    Column("period", "the day, or the ISO week, in UTC; a step belongs to the one in which it began"),
    Column("from", "the first day of the week, a Monday", gives_way=5),
    Column("steps", "how many began", "count"),
    Column("median", "half of the steps took at most this long", "time"),
    Column("p90", "90 % of the steps took at most this long", "time"),
    Column("tokens/s", "of all replies, by the wall time of the steps", "number"),
    Column("slowest", "the step that took longest", gives_way=4),
    Column("its time", "of the longest worker", "time", gives_way=3),
    Column("failed", "requests that ended with an error", "count"),
    Column("unended", "steps that a worker did not close: it was killed, or the step goes on", "count"),
    Column("dropped", "records that the writers lost", "count", gives_way=2),
    Column("restarts", "launches of the trainer, without the first of the run", "count"),
    Column(BARRIER, "share of all workers' wall time: waiting for another worker", "share", gives_way=1),
)
_OF_PERIOD: Final = "share of the wall time of its steps, along the path that decided how long they took"
_REST: Final = Column("rest", "all parts without a column; the parts and `rest` add up to 100", "share")
TABLES: Final = {
    f"--by day, --by week; a part of the ledger has a column if it has {LEAST:.0%} of a period": (
        *_PERIOD,
        *(
            Column(name, f"{_OF_PERIOD}: {meaning}" if number == 0 else f"the same: {meaning}", "share")
            for number, (name, meaning) in enumerate(PARTS.items())
        ),
        _REST,
    ),
}

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
    return {"by": by, "timezone": "UTC", "periods": list(map(as_json, rows))}


def print_periods(title: str, rows: Sequence[_Row]) -> None:
    """Print a row a period, from rows of `period_table`."""
    json_rows = [as_json(row) for row in rows]
    large = {part for row in json_rows for part, share in row["parts"].items() if share >= LEAST}
    parts = [part for part in PARTS if part in large or part in ALWAYS]
    names = ("period", "begin", "steps", "p50_sec", "p90_sec", "tokens_per_sec")
    counts = ("failed", "unended", "dropped", "restarts", "waiting")
    cells = []
    for row in json_rows:
        shares = [row["parts"].get(part, 0.0) for part in parts]
        slowest = None if row["slowest_step"] is None else str(row["slowest_step"])
        rest = max(0.0, 1 - sum(shares)) if row["parts"] else None
        share_cells = [share if row["parts"] else None for share in shares]
        front = (*(row[name] for name in names), slowest, row["slowest_sec"])
        cells.append((*front, *(row[name] for name in counts), *share_cells, rest))
    of_parts = (Column(part, "", "share") for part in parts)
    print_table((*_PERIOD, *of_parts, _REST), cells, title=title)
    print_line("days and weeks are those of UTC; a week begins on Monday")
