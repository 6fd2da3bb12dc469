"""Show how often each event happened, how long it took, and what share of the steps' time it has."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, Final

from sglang_instrument.analysis.tables.from_fields import with_logged_fields
from sglang_instrument.analysis.tables.rollout.events import EVENTS
from sglang_instrument.cli import select
from sglang_instrument.cli.answer import FOLDER, Key
from sglang_instrument.cli.commands import engine_logs
from sglang_instrument.cli.commands.field_columns import add_fields, add_values, columns_of, read_fields
from sglang_instrument.cli.tables import print_json, print_line, print_rows, reading

if TYPE_CHECKING:
    from sglang_instrument.analysis.run.opening import Run

HELP: Final = """\
Show the events of a run: how often each happened, how long it took, and its share of the steps' time.

    sglang-instrument events logs/gsm8k_600
    sglang-instrument events logs/gsm8k_600 --step 67 --worker 0
    sglang-instrument events logs/gsm8k_600 --fields tool_calls,tokens:max     # any field of the log

    event                          workers' time %  count  total s  without nested s  p50 s  p99 s  max s
    engine_async_generate_actual              84.1    310    554.3             554.3   0.98  11.20  41.20
    tool_execution                             2.6     97     18.1              17.9   0.11   0.80   1.91"""

_SHOWN: Final = 24  # rows that fit one screen
TABLES: Final = (EVENTS,)
ANSWER: Final = {
    "folder": FOLDER,
    "step": Key("integer or array", "the chosen steps: one number, or a list; null for all"),
    "worker": Key("integer", "the chosen worker; null for all"),
    "validate": Key("boolean", "whether these are validations"),
    "events": Key(EVENTS),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `events`."""
    select.add_arguments(parser)
    parser.add_argument("--worker", type=int, metavar="R", help="only this worker")
    add_fields(parser)
    parser.add_argument("--all", action="store_true", help=f"all events instead of the first {_SHOWN}")


def run(args: argparse.Namespace) -> int:
    """Print the table of events."""
    import polars as pl

    from sglang_instrument.analysis.answers.events import event_table
    from sglang_instrument.analysis.answers.servers import are_servers_alone

    with reading() as progress:
        opened = select.open_logs(args, args.logs, progress)
        steps = select.steps_of(opened, args, opened.everything)
        read = opened.read_events(steps, args.worker, args.validate, progress)
        alone = are_servers_alone(opened)
        events = read if alone else select.of_steps(opened, read, args, opened.everything)
        fields, sums = read_fields(opened, args, steps, progress)
        if fields and not alone:
            sums = select.of_steps(opened, sums, args, opened.everything)
    select.tell_pruned(opened, steps)
    timed = pl.col("duration_sec").is_not_null()
    table = event_table(events.filter(timed), events.filter(~timed))
    if alone:  # a share is one of the steps' time
        table = table.with_columns(steps_share=pl.lit(None, pl.Float64))
    chosen = {"steps": steps, "worker": args.worker, "validate": args.validate}
    rows = with_logged_fields(EVENTS, opened, table, ["event"], **chosen).to_dicts()
    add_values(rows, fields, sums, ["event"])
    if args.json:
        _print_json(opened, args, steps, rows)
    else:
        _print_table(opened, args, steps, rows)
        if alone:
            print_line(f"{engine_logs.ALONE}; these are the events of the engine's processes")
    return 0


def _print_json(
    opened: Run, args: argparse.Namespace, steps: list[int] | None, events: list[dict[str, Any]]
) -> None:
    step = steps[0] if steps and len(steps) == 1 else steps
    asked = {"step": step, "worker": args.worker, "validate": args.validate}
    print_json({"folder": str(opened.folder), **asked, "events": EVENTS.in_json(events)})


def _print_table(
    opened: Run, args: argparse.Namespace, steps: list[int] | None, events: list[dict[str, Any]]
) -> None:
    shown = events if args.all else events[:_SHOWN]
    of_worker = "" if args.worker is None else f", worker {args.worker}"
    title = f"{opened.name}{select.named(steps, validate=args.validate)}{of_worker}"
    print_rows(EVENTS, shown, title=title, more=columns_of(shown))
    if len(shown) < len(events):
        left = len(events) - len(shown)
        print_line(f"{left} more events with smaller shares: --all")
