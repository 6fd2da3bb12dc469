"""Print by how much clocks of callers and engines differ, from the round trips of their calls."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from sglang_instrument.cli.numbers import count
from sglang_instrument.cli.tables import print_line
from sglang_instrument.plain_text import listed

if TYPE_CHECKING:
    import polars as pl

_MOST: Final = 4  # names in a line


def print_clocks(pairs: pl.DataFrame, processes: pl.DataFrame) -> None:
    """Print the clocks that agree, those that differ, and those that drift; nothing without round trips.

    Args:
        pairs: As `round_trip_table` returns them.
        processes: As `process_clocks` returns them.
    """
    if pairs.is_empty():
        return
    clocks = processes.to_dicts()
    whose = next((f"that of {row['process']}" for row in clocks if row["by"] == "reference"), "the median")
    apart = [row for row in clocks if abs(row["offset_sec"]) > row["residual_sec"]]
    servers = set(pairs["server"])
    alike = [row for row in clocks if row["process"] in servers and row not in apart]
    if alike:
        most = max(row["residual_sec"] for row in alike)
        left = f", +- {most:.3f} s" if most else ": one host"
        print_line(f"the clocks of {_listed(alike)} agree with those of their callers{left}")
    for row in apart:
        if row["by"].startswith("round"):
            offset = f"{row['offset_sec']:+.3f} s +- {row['residual_sec']:.3f} s"
            sentence = (
                f"the clock of {row['process']} differs from {whose} by {offset}, measured by {row['by']}"
            )
            print_line(sentence + _same_clock(row, apart))
    for row in pairs.iter_rows(named=True):
        if row["ahead_at_least_sec"] > row["ahead_at_most_sec"] and not row["same_clock"]:
            print_line(_drifts(row))


def _same_clock(row: dict[str, Any], apart: Sequence[dict[str, Any]]) -> str:
    """Return the other processes that read the same clock, and so have the same offset."""
    same = [
        other
        for other in apart
        if other["by"].startswith("same") and other["offset_sec"] == row["offset_sec"]
    ]
    return f"; the same clock: {_listed(same)}" if same else ""


def _drifts(row: dict[str, Any]) -> str:
    apart_sec = row["ahead_at_least_sec"] - row["ahead_at_most_sec"]
    return (
        f"no constant offset fits the {count(row['calls'])} round trips of {row['client']} and "
        f"{row['server']}: a clock drifted, or was set, by {apart_sec:.3f} s or more"
    )


def _listed(rows: Sequence[dict[str, Any]]) -> str:
    return listed([row["process"] for row in rows], _MOST)
