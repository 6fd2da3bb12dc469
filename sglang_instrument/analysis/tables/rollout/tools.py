"""Tools, interactions and rewards by name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sglang_instrument.analysis.tables.column import Column
from sglang_instrument.analysis.tables.table import Table

if TYPE_CHECKING:
    import polars as pl

    from sglang_instrument.analysis.run.opening import Run


def _make(run: Run) -> pl.DataFrame:
    from sglang_instrument.analysis.answers.turns import tool_table

    return tool_table(run.read_spans(validate=False))


TOOLS: Final = Table(
    name="tools",
    row="a tool, an interaction or a reward by its name, the largest total first",
    commands=("turns",),
    option="--tools",
    make=_make,
    columns=(
        Column("event", "its event in the log"),
        Column("tool", "its name; null if not logged"),
        Column("count", "how many calls", "count"),
        Column("total_sec", "time of all calls; nested and concurrent ones count again", "time"),
        Column("p50_sec", "half of the calls took at most this long", "fine time"),
        Column("p99_sec", "99 % of the calls took at most this long", "fine time"),
        Column("max_sec", "the longest call", "fine time"),
        Column("mean_in_flight", "how many of these calls went on at once, while any did", "number", 2),
        Column("most_in_flight", "the most that went on at once", "count", 1),
        Column(
            "queue_sec",
            "by how much the median call that began with many in flight (the upper half) took longer than "
            "that with few (the lowest tenth): an estimate of the wait for a server, or for a place in the "
            "client; null with fewer than 16 calls, or where as many were in flight at all times",
            "fine time",
            title="queue",
        ),
    ),
)
