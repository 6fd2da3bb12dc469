"""Ask a run in SQL: its spans, requests, turns and other tables, by DuckDB."""

from __future__ import annotations

import argparse
import re
import sys
from datetime import date, time, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sglang_instrument.analysis.tables.column import Cell, Column
from sglang_instrument.cli import select
from sglang_instrument.cli.plain import say
from sglang_instrument.cli.tables import print_json, print_line, print_table, reading
from sglang_instrument.errors import InstrumentError
from sglang_instrument.plain_text import plain

if TYPE_CHECKING:
    import polars as pl

HELP: Final = """\
Ask a run in SQL. The tables are spans, requests, turns, steps, workers, engine_requests, gauges, gpus,
processes, settings, findings, control and fields. docs/reference/dataset.md describes them, and
docs/how-to/sql.md has twenty answers.

    sglang-instrument sql logs/gsm8k_600 "describe requests"
    sglang-instrument sql logs/gsm8k_600 "select step, max(duration_sec) from requests group by step"
    sglang-instrument sql logs/gsm8k_600 "select event, extra->>'tool_calls' from spans"    # your own fields
    sglang-instrument sql gsm8k_600_parquet "select step, quantile_cont(duration_sec, 0.99) as p99
        from spans where event = 'tool_execution' group by step order by step" --csv > p99.csv

The first query about spans writes them to the run's store, in worker processes. Later queries read them from
there, and only log files that changed are read again. A dataset of `export --parquet` has them already.
DuckDB runs the query and reads these tables only: no other files, no network, no statement that writes.

--json prints {"folder", "rows": [{COLUMN: value}]}"""

_SHOWN: Final = 200  # rows
_FORMULAS: Final = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet computes a cell that begins so
_NUMBER: Final = re.compile(r"[+-]?[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `sql`."""
    parser.add_argument("logs", metavar="RUN", type=Path, help=f"{select.LOGS_HELP}, or a dataset of export")
    parser.add_argument("query", metavar="QUERY", help="one SELECT, in quotes")
    select.add_ray(parser)
    form = parser.add_mutually_exclusive_group()
    form.add_argument(
        "--csv",
        action="store_true",
        help="print all rows as CSV, control characters as \\x1b, with ' before what looks like a formula",
    )
    form.add_argument("--json", action="store_true", help="print all rows as JSON")
    form.add_argument("--parquet", type=Path, metavar="FILE", help="write all rows to this new file")


def run(args: argparse.Namespace) -> int:
    """Print the answer."""
    from sglang_instrument.analysis.dataset.columns import VIEWS
    from sglang_instrument.analysis.dataset.export import write_table, writing
    from sglang_instrument.analysis.dataset.query import ask, asks_records_alone, without_odd_times

    if args.parquet is not None and args.parquet.exists():
        raise InstrumentError(f"{args.parquet} exists; nothing is overwritten")
    if args.parquet is not None and not args.parquet.absolute().parent.is_dir():
        raise InstrumentError(f"--parquet {args.parquet}: must be a file in an existing folder")
    with reading() as progress:
        opened = select.open_logs(args, args.logs, progress, files_alone=asks_records_alone(args.query))
        rows, left_out = without_odd_times(ask(opened, args.query, progress))
    for name, times in left_out.items():
        say(f"column {name}: {times:,} outside of the years 1 to 9999, shown as null", sys.stderr)
    if any(name in args.query.lower() for name in ("spans", *VIEWS)):
        select.tell_pruned(opened)
    if args.csv:
        _print_csv(rows)
    elif args.json:
        print_json({"folder": str(opened.folder), "rows": [_plain(row) for row in rows.to_dicts()]})
    elif args.parquet is not None:
        with writing(args.parquet):
            write_table(args.parquet, rows)
        print_line(f"{len(rows):,} rows in {args.parquet}")
    else:
        _print(opened.name, rows)
    return 0


def _print_csv(rows: pl.DataFrame) -> None:
    import polars as pl

    # CSV has no lists, structs or bytes.
    others = [name for name, kind in rows.schema.items() if kind.is_nested() or kind == pl.Binary]
    texts = [
        pl.Series(name, [None if value is None else str(value) for value in rows[name].to_list()], pl.String)
        for name in others
    ]
    safe = (
        rows.with_columns(texts)
        .rename({name: _inert(name) for name in rows.columns})
        .with_columns(pl.col(pl.String).map_elements(_inert, return_dtype=pl.String))
    )
    for line in safe.write_csv().rstrip("\n").split("\n"):
        say(line)


def _inert(text: str) -> str:
    """Return text that no terminal obeys and no spreadsheet computes, as it would =HYPERLINK(...)."""
    is_formula = text.startswith(_FORMULAS) and not _NUMBER.fullmatch(text)
    return f"'{plain(text)}" if is_formula else plain(text)


def _print(name: str, rows: pl.DataFrame) -> None:
    columns = [
        # A column of numbers stands on the right.
        Column(header, "", "count" if kind.is_numeric() else "words")
        for header, kind in rows.schema.items()
    ]
    cells = [[_cell(value) for value in row] for row in rows.head(_SHOWN).iter_rows()]
    print_table(columns, cells, title=f"{name}: {len(rows):,} row{'' if len(rows) == 1 else 's'}")
    if len(rows) > _SHOWN:
        print_line(f"{_SHOWN} of {len(rows):,} rows are shown; --csv, --json and --parquet have all")


def _cell(value: Any) -> Cell:
    if value is None:
        return None
    return plain(f"{value:.6g}" if isinstance(value, float) else str(value))


def _plain(row: dict[str, Any]) -> dict[str, Any]:
    """Return a row as values that JSON has; dates and times as ISO 8601."""
    return {name: _writable(value) for name, value in row.items()}


def _writable(value: Any) -> Any:
    if isinstance(value, (date, time)):  # a datetime is a date
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    return value if isinstance(value, (int, float, str, list, dict, type(None))) else str(value)
