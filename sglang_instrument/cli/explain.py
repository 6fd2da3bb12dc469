"""Explain the columns of a command's tables: `--explain` needs no run."""

import argparse
import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import Any

from sglang_instrument.analysis.tables.table import Table
from sglang_instrument.cli.columns import explanation
from sglang_instrument.cli.plain import say


class Explain(argparse.Action):
    """Print what each column is, and exit."""

    def __init__(self, option_strings: Sequence[str], dest: str, tables: Sequence[Table]) -> None:
        """Take the tables of a command."""
        super().__init__(option_strings, dest, nargs=0, help="print what each column is")
        self._tables = tables

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        """Print the tables of the command."""
        for line in _lines(self._tables):
            say(line)
        sys.stdout.flush()
        parser.exit()


def _lines(tables: Sequence[Table]) -> list[str]:
    width = min(shutil.get_terminal_size((110, 24)).columns, 110)
    pairs = list(explanation(tables))
    names = max(len(name) for name, meaning in pairs if meaning)
    lines: list[str] = []
    for name, meaning in pairs:
        if not meaning:
            lines += ["", name]
            continue
        indent = f"  {name:<{names}}  "
        lines += textwrap.wrap(meaning, width, initial_indent=indent, subsequent_indent=" " * len(indent))
    return lines[1:]
