"""Describe the columns of tables, and write the numbers of a column in one unit and one precision."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, NamedTuple

NOTHING: Final = "-"
UNITS: Final = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
_TIMES: Final = ("time", "fine time")


class Styled(NamedTuple):
    """Words in a colour."""

    words: str
    style: str


Cell = str | int | float | Styled | None


@dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
        name: The header, without a unit.
        meaning: What `--explain` prints.
        kind: What the cells are: words; whole numbers; numbers with up to three decimals; shares of 1, which
            are written in percent; seconds. Rows of a "time" are alike: the largest one decides how many
            decimals all have. Rows of a "fine time" differ: the smallest one can be read, too.
        gives_way: A narrow terminal leaves out the columns with a number, 1 first.
        styles: Colours of words.
    """

    name: str
    meaning: str
    kind: Literal["words", "count", "number", "share", "time", "fine time"] = "words"
    gives_way: int = 0
    styles: Mapping[str, str] = field(default_factory=dict)


def explanation(tables: Mapping[str, Sequence[Column]]) -> Iterable[tuple[str, str]]:
    """Yield what `--explain` prints, as pairs: a title and "", or the name of a column and its meaning."""
    for title, columns in tables.items():
        yield title, ""
        for column in columns:
            yield f"{column.name} %" if column.kind == "share" else column.name, column.meaning
        if first := [column.name for column in leave_out(columns)]:
            yield "", f"A narrow terminal leaves out, in this order: {', '.join(first)}."


def leave_out(columns: Sequence[Column]) -> list[Column]:
    """Return the columns that a narrow terminal leaves out, in this order."""
    return sorted((one for one in columns if one.gives_way), key=lambda one: one.gives_way)


def write(columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> list[tuple[str, list[str]]]:
    """Return the header and the cells of each column."""
    cells: list[Sequence[Cell]] = list(zip(*rows, strict=True)) or [()] * len(columns)
    units = {
        kind: _unit(
            kind,
            [
                size
                for one, own in zip(columns, cells, strict=True)
                if one.kind == kind
                for size in _sizes(own)
            ],
        )
        for kind in _TIMES
    }
    return [
        _written(column, own, *units.get(column.kind, (1.0, "")))
        for column, own in zip(columns, cells, strict=True)
    ]


def _written(column: Column, cells: Sequence[Cell], scale: float, unit: str) -> tuple[str, list[str]]:
    sizes = [size / scale for size in _sizes(cells)]
    if column.kind == "share":
        scale, unit, sizes = 0.01, "%", [size * 100 for size in sizes]
    digits = _digits(column.kind, sizes)
    return f"{column.name} {unit}".rstrip(), [_cell(cell, scale, digits) for cell in cells]


def _sizes(cells: Iterable[Cell]) -> list[float]:
    """Return the numbers without their signs, and without zeros."""
    return [abs(cell) for cell in cells if isinstance(cell, (int, float)) and cell]


def _unit(kind: str, sizes: list[float]) -> tuple[float, str]:
    largest = max(sizes, default=1.0)
    below_ms = kind == "fine time" and min(sizes, default=1.0) < 1e-3
    return next((one for one in UNITS[below_ms:] if largest >= 0.1 * one[0]), UNITS[-1])


def _digits(kind: str, sizes: list[float]) -> int:
    """Return the number of decimals of a column."""
    if kind in ("words", "count") or not sizes:
        return 0
    if kind == "share":
        return int(min(sizes) < 10)
    largest, smallest = max(sizes), min(sizes)
    digits = 0 if largest >= 10_000 else 1 if largest >= 10 else 2 if largest >= 1 else 3
    if kind == "number":
        exact = (n for n in range(digits) if all(round(size, n) == round(size, digits) for size in sizes))
        return next(exact, digits)
    if kind == "fine time":
        return max(digits, min(2, math.ceil(-math.log10(smallest))))
    return digits


def _cell(cell: Cell, scale: float, digits: int) -> str:
    if cell is None:
        return NOTHING
    if isinstance(cell, Styled):
        return cell.words
    if isinstance(cell, str):
        return cell
    text = f"{cell / scale:,.{digits}f}"
    if cell and not float(text.replace(",", "")):
        return f"{'-' if cell < 0 else ''}<{10.0**-digits:.{digits}f}"
    return text
