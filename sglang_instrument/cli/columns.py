"""Write the numbers of a column in one unit and one precision, and explain columns."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Final

from sglang_instrument.analysis.tables.column import Cell, Column, Styled
from sglang_instrument.analysis.tables.table import Table

NOTHING: Final = "-"
UNITS: Final = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
_TIMES: Final = ("time", "fine time")
_WHOLE: Final = ("words", "count", "rounded", "id", "ordinal", "moment", "flag")


def explanation(tables: Iterable[Table]) -> Iterable[tuple[str, str]]:
    """Yield what `--explain` prints, as pairs: a title and "", or the name of a column and its meaning."""
    for table in tables:
        yield table.title, ""
        shown = [column for column in table.columns if column.terminal]
        for column in shown:
            yield f"{column.header} %" if column.printed == "share" else column.header, _meaning(column)
        if order := [column.header for column in leave_out(shown)]:
            yield "", f"A narrow terminal leaves out, in this order: {', '.join(order)}."
        hidden = [column for column in table.columns if not column.terminal]
        if hidden:
            yield "", f"Only in {_places(table)}:"
        for column in hidden:
            yield column.name, f"{column.meaning}{_in_brackets(column, '')}"


def _meaning(column: Column) -> str:
    """Return what a column of the terminal is, and its name where programs read it."""
    name = column.name if column.json or column.frame else column.header
    return f"{column.meaning}{_in_brackets(column, name if name != column.header else '')}"


def _in_brackets(column: Column, name: str) -> str:
    """Return the name, and the unit if programs read the column and the name does not end in it."""
    is_read = column.json or column.frame
    unit = "" if column.name.endswith(("_sec", "_us")) or not is_read else column.unit
    words = ", ".join(filter(None, (name, unit)))
    return f" [{words}]" if words else ""


def _places(table: Table) -> str:
    if table.is_stored:
        return "--json, SQL and the notebook"
    return "--json" if table.make is None else "--json and the notebook"


def size(count: float) -> str:
    """Return bytes as people read them: 812 B, 1.4 MB."""
    for unit in ("B", "kB", "MB"):
        if count < 1000:
            return f"{count:.0f} {unit}" if unit == "B" or count >= 100 else f"{count:.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} GB"


def leave_out(columns: Sequence[Column]) -> list[Column]:
    """Return the columns that a narrow terminal leaves out, in this order."""
    return sorted((column for column in columns if column.gives_way), key=lambda column: column.gives_way)


def write(columns: Sequence[Column], rows: Sequence[Sequence[Cell]]) -> list[tuple[str, list[str]]]:
    """Return the header and the cells of each column."""
    cells: list[Sequence[Cell]] = list(zip(*rows, strict=True)) or [()] * len(columns)
    units = {
        kind: _unit(
            kind,
            [
                size
                for column, column_cells in zip(columns, cells, strict=True)
                if column.printed == kind
                for size in _sizes(column_cells)
            ],
        )
        for kind in _TIMES
    }
    return [
        _written(column, column_cells, *units.get(column.printed, (1.0, "")))
        for column, column_cells in zip(columns, cells, strict=True)
    ]


def _written(column: Column, cells: Sequence[Cell], scale: float, unit: str) -> tuple[str, list[str]]:
    sizes = [size / scale for size in _sizes(cells)]
    if column.printed == "bytes":
        return column.header, [size(cell) if isinstance(cell, int) else _cell(cell, 1.0, 0) for cell in cells]
    if column.printed == "share":
        scale, unit, sizes = 0.01, "%", [size * 100 for size in sizes]
    digits = _digits(column.printed, sizes)
    return f"{column.header} {unit}".rstrip(), [_cell(cell, scale, digits) for cell in cells]


def _sizes(cells: Iterable[Cell]) -> list[float]:
    """Return the numbers without their signs, and without zeros."""
    return [abs(cell) for cell in cells if isinstance(cell, (int, float)) and cell]


def _unit(kind: str, sizes: list[float]) -> tuple[float, str]:
    largest = max(sizes, default=1.0)
    below_ms = kind == "fine time" and min(sizes, default=1.0) < 1e-3
    return next(((scale, unit) for scale, unit in UNITS[below_ms:] if largest >= 0.1 * scale), UNITS[-1])


def _digits(kind: str, sizes: list[float]) -> int:
    """Return the number of decimals of a column."""
    if kind in _WHOLE or not sizes:
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
