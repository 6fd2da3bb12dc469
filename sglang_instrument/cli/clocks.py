"""Say by how much clocks differ, as far as round trips between callers and engines tell."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from sglang_instrument.cli.numbers import count
from sglang_instrument.cli.tables import print_line

if TYPE_CHECKING:
    import polars as pl

_MOST: Final = 4  # names in a line


def print_clocks(pairs: pl.DataFrame, processes: pl.DataFrame) -> None:
    """Print what round trips say; nothing without any.

    Args:
        pairs: As `round_trip_table` has them.
        processes: As `process_clocks` has them.
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
        print_line(f"clocks of {_listed(alike)} agree with their callers'{left}")
    for row in apart:
        if row["by"].startswith("round"):
            found = f"the clock of {row['process']} is {row['offset_sec']:+.3f} s from {whose}, "
            print_line(f"{found}+- {row['residual_sec']:.3f} s, by {row['by']}{_so(row, apart)}")
    for row in pairs.iter_rows(named=True):
        if row["low_sec"] > row["high_sec"] and not row["same_clock"]:
            print_line(_drifts(row))


def _so(row: dict[str, Any], apart: Sequence[dict[str, Any]]) -> str:
    """Return which others read the same clock, and are as far ahead for that reason."""
    told = [one for one in apart if one["by"].startswith("same") and one["offset_sec"] == row["offset_sec"]]
    return f"; the same clock: {_listed(told)}" if told else ""


def _drifts(row: dict[str, Any]) -> str:
    return (
        f"no constant difference of clocks fits the {count(row['calls'])} round trips of {row['client']} and "
        f"{row['server']}: one drifts, or was set, by {row['low_sec'] - row['high_sec']:.3f} s or more"
    )


def _listed(rows: Sequence[dict[str, Any]]) -> str:
    names = [row["process"] for row in rows]
    rest = f" and {len(names) - _MOST} more" if len(names) > _MOST else ""
    return ", ".join(names[:_MOST]) + rest
