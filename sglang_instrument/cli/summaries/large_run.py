"""Print `summary` of a run that is too large to be read as a whole."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from sglang_instrument.analysis.tables.run.findings import FINDINGS
from sglang_instrument.cli import select
from sglang_instrument.cli.summaries import periods as period_tables
from sglang_instrument.cli.summaries.tables import StepTables, print_tables
from sglang_instrument.cli.tables import print_json, print_line, print_told, reading
from sglang_instrument.whole_commands import whole_commands

if TYPE_CHECKING:
    from sglang_instrument.analysis.long_runs.summary import LongSummary


def of(args: argparse.Namespace) -> LongSummary | None:
    """Return what a run tells that is too large to be read as a whole; None if it is not."""
    from sglang_instrument.analysis.long_runs.pieces import large_run
    from sglang_instrument.analysis.long_runs.summary import summarise

    run = large_run(args.logs, args.ray, by_step=not args.by)
    if run is None:
        return None
    with reading() as progress:
        return summarise(run, progress)


def tell(args: argparse.Namespace, long: LongSummary, settings: str) -> int:
    """Print the tables of a run that was read in pieces, its verdict, its settings and what its log lacks."""
    from sglang_instrument.analysis.long_runs.periods import period_table

    vars(args)["lost"] = long.lost
    chosen = select.steps_among(long.name, long.rows, args) if args.step else None
    said = {"verdict": long.sentence, "findings": FINDINGS.in_json(map(asdict, long.findings))}
    if args.by:
        rows = long.rows.filter(select.chosen(args, chosen))
        periods = period_table(rows, long.launches, args.by).to_dicts()
        if args.json:
            of_periods = period_tables.json_of(args.by, periods)
            print_json({"folder": str(long.folder), **said, **of_periods, "health": asdict(long.health)})
            return 0
        where = select.named(chosen, validate=args.validate)
        period_tables.print_periods(f"{long.name}{where}, by {args.by}", periods)
    else:
        workers = long.tables[1]["worker"].n_unique()
        tables = StepTables.of(long.name, workers, long.tables, args.validate, chosen)
        if args.json:
            without: dict[str, Any] = {"windows": [], "engine": None, "servers": []}
            of_steps = {**without, **tables.as_json(chosen)}
            print_json({"folder": str(long.folder), **said, **of_steps, "health": asdict(long.health)})
            return 0
        print_tables(tables, args.validate, chosen)
    if args.window is not None:
        print_line("no windows: a run that is read in pieces has none")
    label = "verdict of the whole run" if chosen else "verdict"
    print_told(label, long.sentence, "bold red" if long.findings else "bold green")
    if long.findings and long.findings[0].advice:
        print_told("advice", long.findings[0].advice)
    if settings:
        settings_line = f'{settings}; `sql LOGS "from settings"` lists all'
        print_told("settings", whole_commands(settings_line, str(args.logs)))
    print_told("log", long.health.sentence())
    return 0
