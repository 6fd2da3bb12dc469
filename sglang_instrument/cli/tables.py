"""Print tables for people and JSON for programs.

rich is imported when a table is printed: it takes longer to import than `--help` may take.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

from sglang_instrument.analysis.answers.json_pieces import pieces_of_json
from sglang_instrument.analysis.tables.column import Cell, Column, Styled
from sglang_instrument.analysis.tables.table import Row, Table
from sglang_instrument.cli.columns import leave_out, write
from sglang_instrument.plain_text import plain, plain_json
from sglang_instrument.whole_commands import wrapped

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

_PATIENCE_SEC: Final = 2.0
_NOTHING: Final = "nothing was recorded"
_UNLIMITED: Final = 100_000  # columns of output that is no terminal
_ON_THE_LEFT: Final = ("words", "flag", "timestamp", "list", "object")  # kinds
_LEAST_WORDS: Final = 20  # a narrow terminal cuts the words of the first column to this many characters


def print_json(answer: Any) -> None:
    """Print `answer` as indented JSON on stdout; `JsonRows` in it are lists."""
    for piece in pieces_of_json(answer):
        sys.stdout.write(plain_json(piece))


def text(words: str, style: str = "") -> Text:
    """Return text for rich without control characters, and without markup: an event may be called [red]."""
    from rich.text import Text

    return Text(plain(words), style)


def print_rows(
    table: Table,
    rows: Sequence[Row],
    *,
    title: str,
    more: Sequence[Column] = (),
    explained: bool = True,
    cells: Mapping[str, Callable[[Row], Cell]] | None = None,
    nothing: str = _NOTHING,
) -> None:
    """Print rows of a table, and below them how to have its columns explained.

    Args:
        table: What declares the columns.
        rows: By the names of the columns.
        title: A line above the table.
        more: Columns that only these rows have; each makes its own cells.
        explained: Whether a line says how to have the columns explained; of several tables, the last has it.
        cells: Makes the cells of some columns of the table, by name.
        nothing: What to say where there are no rows.
    """
    made = cells or {}
    columns = [column for column in table.columns if column.terminal and _is_shown(column, rows)]
    columns += more
    print_table(
        columns,
        [[made.get(column.name, column.cell_of)(row) for column in columns] for row in rows],
        title=title,
        explained=explained,
        nothing=nothing,
    )


def _is_shown(column: Column, rows: Sequence[Row]) -> bool:
    if column.optional and not any(column.name in row for row in rows):
        return False
    return not column.if_any or any(row.get(column.name) for row in rows)


def print_table(
    columns: Sequence[Column],
    rows: Sequence[Sequence[Cell]],
    *,
    title: str,
    explained: bool = False,
    nothing: str = _NOTHING,
) -> None:
    """Print a table whole; only a terminal that is too narrow for it gets less. Without rows, say so.

    Then headers take a line a word. Then columns are left out in the order of `leave_out`. Then words of the
    first column are cut, and columns are left out from the right. A line below says what is not shown.
    """
    from rich.box import SIMPLE_HEAD
    from rich.table import Table

    console = _console()
    if not rows:
        print_line(f"{title.strip()}: {nothing}")
        return
    written = [(header, [plain(cell) for cell in cells]) for header, cells in write(columns, rows)]
    if _total(_widths(written)) > console.width:
        written = [(header.replace(" ", "\n"), cells) for header, cells in written]
    widths = _widths(written)
    shown = _fitting(columns, widths, console.width)
    spare = console.width - _total([widths[index] for index in shown])
    gap = 2 if spare >= len(shown) else 1
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, gap - 1, 0, 0), show_edge=False)
    for index in shown:
        table.add_column(
            written[index][0],
            justify="left" if not index or columns[index].printed in _ON_THE_LEFT else "right",
            no_wrap=True,
            overflow="ellipsis",
            width=widths[index] + (0 if index else min(0, spare)),
        )
    for number, row in enumerate(rows):
        table.add_row(
            *(text(written[index][1][number], _style(columns[index], row[index])) for index in shown)
        )
    if title.startswith("\n"):  # print an empty line between two tables
        console.print()
    console.print(text(title.removeprefix("\n"), "bold"), soft_wrap=console.width == _UNLIMITED)
    console.print(table)
    if hidden := [column.header for index, column in enumerate(columns) if index not in shown]:
        print_line(f"{console.width} columns leave out: {', '.join(hidden)}; `| less -S` shows all", "dim")
    if explained:
        print_line("--explain says what each column is", "dim")


def room() -> int:
    """Return how many characters a line of the output has."""
    return _console().width


def _console() -> Console:
    """Return a console that is as wide as the terminal; a file or a pipe has room for everything."""
    from sglang_instrument.cli.console import PipeConsole

    width = _UNLIMITED
    if sys.stdout.isatty():
        asked = os.environ.get("COLUMNS", "")
        width = int(asked) if asked.isdecimal() else os.get_terminal_size(sys.stdout.fileno()).columns
    return PipeConsole(width=width or 80, highlight=False)


def _style(column: Column, cell: Cell) -> str:
    return cell.style if isinstance(cell, Styled) else column.styles.get(str(cell), "")


def _fitting(columns: Sequence[Column], widths: Sequence[int], room: int) -> list[int]:
    """Return the indices of the columns that a terminal has room for."""
    shown = list(range(len(columns)))
    for column in leave_out(columns):
        if _total([widths[index] for index in shown]) > room:
            shown.remove(columns.index(column))
    words = min(widths[0], _LEAST_WORDS)
    while len(shown) > 1 and _total([words, *(widths[index] for index in shown[1:])]) > room:
        shown.pop()
    return shown


def _widths(written: Sequence[tuple[str, list[str]]]) -> list[int]:
    from rich.cells import cell_len

    return [max(map(cell_len, (*header.split("\n"), *cells))) for header, cells in written]


def _total(widths: Sequence[int]) -> int:
    return sum(widths) + len(widths) - 1


def print_line(line: str, style: str = "") -> None:
    """Print a line of words, wrapped at the width of the terminal."""
    console = _console()
    for piece in wrapped(plain(line), console.width):
        console.print(text(piece, style), soft_wrap=True)


def print_told(label: str, words: str, style: str = "bold") -> None:
    """Print a line of words after a label in a style."""
    from rich.text import Text

    console = _console()
    first, *more = wrapped(plain(words), console.width, len(label) + 2)
    console.print(Text.assemble(text(f"{label}:", style), " ", text(first)), soft_wrap=True)
    for piece in more:
        console.print(text(piece), soft_wrap=True)


@contextmanager
def reading(what: str = "files") -> Iterator[Callable[[int, int], None]]:
    """Yield a function that shows on stderr how many files are read, after two seconds."""
    with progress_line() as say:
        yield lambda done, total: say(f"reading: {done:,} of {total:,} {what}")


@contextmanager
def progress_line() -> Iterator[Callable[[str], None]]:
    """Yield a function that shows a line of progress on stderr, after two seconds."""
    begun, shown = time.monotonic(), False

    def say(doing: str) -> None:
        nonlocal shown
        if sys.stderr.isatty() and time.monotonic() - begun > _PATIENCE_SEC:
            shown = True
            print(f"\r\033[K{plain(doing)}", end="", file=sys.stderr, flush=True)

    try:
        yield say
    finally:
        if shown:
            print("\r\033[K", end="", file=sys.stderr, flush=True)
