"""Show how often each event happened, how long it took, and what share of the steps' time it has."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Final

from sglang_instrument.cli import select
from sglang_instrument.cli.commands import engine_logs
from sglang_instrument.cli.numbers import count, percent, seconds
from sglang_instrument.cli.tables import print_json, print_line, print_table, reading

if TYPE_CHECKING:
    import polars as pl

    from sglang_instrument.analysis.run.opening import Run

HELP: Final = """\
Show the events of a run: how often each happened, how long it took, and its share of the steps' time.

    sglang-instrument events logs/gsm8k_600
    sglang-instrument events logs/gsm8k_600 --step 67 --worker 0

share %   of the steps' wall time: each instant is split equally among the innermost spans open at it, so
          that the shares add up to 100
total s   sum of the durations; nested and concurrent spans count again
self s    the same without the time of nested spans

--json prints {"folder", "step", "worker", "validate", "events": [{"event", "phase", "count", "total_sec",
"self_sec", "share" (0 to 1), "p50_sec", "p99_sec", "max_sec"}]}; null where an event has no duration, and for
"share" where only the engine's processes logged."""

_SHOWN: Final = 24  # rows that fit one screen


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `events`."""
    select.add_arguments(parser)
    parser.add_argument("--worker", type=int, metavar="R", help="only this worker")
    parser.add_argument("--all", action="store_true", help=f"all events instead of the first {_SHOWN}")


def run(args: argparse.Namespace) -> int:
    """Print the table of events."""
    import polars as pl

    from sglang_instrument.analysis.answers.events import event_table
    from sglang_instrument.analysis.answers.servers import are_servers_alone
    from sglang_instrument.analysis.run.opening import open_run

    with reading() as progress:
        opened = open_run(args.logs, progress)
        select.demand(opened, args, opened.everything)
        read = opened.read_events(args.step, args.worker, args.validate, progress)
        alone = are_servers_alone(opened)
        events = read if alone else select.of_steps(opened, read, args, opened.everything)
    timed = pl.col("duration_sec").is_not_null()
    table = event_table(events.filter(timed), events.filter(~timed))
    if alone:  # a share is one of the steps' time
        table = table.with_columns(share=pl.lit(None, pl.Float64))
    if args.json:
        _print_json(opened, args, table)
    else:
        _print_table(opened, args, table)
        if alone:
            print_line(f"{engine_logs.ALONE}; these are the events of the engine's processes")
    return 0


def _print_json(opened: Run, args: argparse.Namespace, table: pl.DataFrame) -> None:
    asked = {"step": args.step, "worker": args.worker, "validate": args.validate}
    print_json({"folder": str(opened.folder), **asked, "events": table.to_dicts()})


def _print_table(opened: Run, args: argparse.Namespace, table: pl.DataFrame) -> None:
    shown = table if args.all else table.head(_SHOWN)
    rows = [
        (
            row["event"],
            percent(row["share"]),
            count(row["count"]),
            seconds(row["total_sec"]),
            seconds(row["self_sec"]),
            seconds(row["p50_sec"]),
            seconds(row["p99_sec"]),
            seconds(row["max_sec"]),
        )
        for row in shown.iter_rows(named=True)
    ]
    columns = ("event", "share %", "count", "total s", "self s", "p50 s", "p99 s", "max s")
    print_table(columns, rows, title=_title(opened, args), optional=("self s", "p50 s"))
    if len(shown) < len(table):
        left = len(table) - len(shown)
        print_line(f"{left} more events with smaller shares: --all")


def _title(opened: Run, args: argparse.Namespace) -> str:
    kind = "validation" if args.validate else "step"
    step = f", {kind} {args.step}" if args.step is not None else f", {kind}s" if args.validate else ""
    return f"{opened.name}{step}" + (f", worker {args.worker}" if args.worker is not None else "")
