"""Print tables for people and JSON for programs.

rich is imported when a table is printed: it takes longer to import than `--help` may take.
"""

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Final

import orjson

from sglang_instrument.analysis.answers.as_json import as_json
from sglang_instrument.cli.plain import plain, plain_json

if TYPE_CHECKING:
    from rich.text import Text

_PATIENCE_SEC: Final = 2.0


def print_json(answer: Any) -> None:
    """Print `answer` as indented JSON on stdout."""
    sys.stdout.write(plain_json(as_json(answer, orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE).decode()))


def text(words: str, style: str = "") -> "Text":
    """Return text for rich without control characters, and without markup: an event may be called [red]."""
    from rich.text import Text

    return Text(plain(words), style)


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[str]],
    *,
    title: str,
    optional: Sequence[str] = (),
) -> None:
    """Print a table whose first column holds words and whose other columns hold numbers.

    In a narrow terminal the columns move together. Then the `optional` ones are left out, in their order.
    Then words are cut; numbers never are.
    """
    from rich.box import SIMPLE_HEAD
    from rich.console import Console
    from rich.table import Table

    console = Console()
    rows = [[plain(cell) for cell in row] for row in rows]
    widths = [max(map(len, cells)) for cells in zip(columns, *rows, strict=True)]
    shown = list(range(len(columns)))
    for column in optional:
        if _width(widths, shown) > console.width:
            shown.remove(columns.index(column))
    gap = int(_width(widths, shown) + len(shown) <= console.width)
    table = Table(box=SIMPLE_HEAD, pad_edge=False, padding=(0, gap, 0, 0), show_edge=False)
    for index in shown:
        table.add_column(
            columns[index],
            justify="right" if index else "left",
            no_wrap=True,
            overflow="ellipsis",
            min_width=widths[index] if index else None,
        )
    for row in rows:
        table.add_row(*(text(row[index]) for index in shown))
    if title.startswith("\n"):  # print an empty line between two tables
        console.print()
    console.print(text(title.removeprefix("\n"), "bold"), table, sep="\n")


def _width(widths: list[int], shown: list[int]) -> int:
    return sum(widths[index] for index in shown) + len(shown) - 1


def print_line(line: str) -> None:
    """Print a line of words, wrapped at the width of the terminal."""
    from rich.console import Console

    Console(highlight=False).print(text(line))


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
