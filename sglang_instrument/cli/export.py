"""Write a run as Parquet files, for whatever reads tables, or as a Perfetto trace, to look at."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from sglang_instrument.cli import select
from sglang_instrument.cli.tables import print_line, reading
from sglang_instrument.errors import InstrumentError

HELP: Final = """\
Write a run as Parquet (zstd): every span of each step, nested, and the tables of steps, requests, turns and
barriers. Or as a Perfetto trace: open it at https://ui.perfetto.dev, which runs in the browser alone.

    sglang-instrument export logs/gsm8k_600 --parquet gsm8k_600_parquet
    duckdb -c "select event, sum(self_sec) from 'gsm8k_600_parquet/spans/*.parquet' group by 1"
    sglang-instrument export logs/gsm8k_600 --perfetto step67.pftrace --step 67 --traces /tmp/sglang_profile

spans/step_N.parquet, spans/validate_N.parquet   the columns are described in docs/reference/numbers.md
steps.parquet, requests.parquet, turns.parquet, barriers.parquet; records outside of any step are in no row
of steps and barriers
--perfetto   a track a request below its worker, turns joined by arrows, requests in flight, loop lag; clocks
             of hosts aligned; with --traces the kernels of the engines' profilers from the same time"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `export`."""
    parser.add_argument("logs", metavar="LOGS", type=Path, help="the experiment's folder, logs/EXPERIMENT")
    form = parser.add_mutually_exclusive_group(required=True)
    form.add_argument("--parquet", type=Path, metavar="FOLDER", help="a folder, new or empty")
    form.add_argument("--perfetto", type=Path, metavar="FILE", help="a file that is not there yet")
    parser.add_argument("--step", type=int, metavar="N", help="of --perfetto: this step alone")
    parser.add_argument("--validate", action="store_true", help="of --perfetto: the validation alone")
    parser.add_argument("--traces", type=Path, metavar="DIR", help="of --perfetto: traces to lay beside it")


def run(args: argparse.Namespace) -> int:
    """Write what was asked for."""
    if args.perfetto is not None:
        return _write_perfetto(args)
    for name in ("step", "validate", "traces"):
        if getattr(args, name):
            raise InstrumentError(f"--{name} goes with --perfetto; Parquet has all steps")
    return _write_parquet(args)


def _write_perfetto(args: argparse.Namespace) -> int:
    from sglang_instrument.analysis.run import open_run
    from sglang_instrument.cli.merging import merge

    with reading("steps and traces") as progress:
        opened = open_run(args.logs)
        select.demand(opened, args, opened.everything)
        said = merge(args.perfetto, opened, args.traces, args.step, args.validate or None, progress)
    for line in said:
        print_line(line)
    return 0


def _write_parquet(args: argparse.Namespace) -> int:
    """Write the files, a step at a time: memory holds one."""
    import polars as pl

    from sglang_instrument.analysis.run import open_run

    target: Path = args.parquet
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise InstrumentError(f"{target} is there and not an empty folder; nothing is overwritten")
    with reading() as progress:
        opened = open_run(args.logs, progress)
        (target / "spans").mkdir(parents=True, exist_ok=True)
        rows = 0
        steps = opened.everything.steps.select("step", "validate").unique().sort("validate", "step")
        for number, (step, validate) in enumerate(steps.iter_rows()):
            progress(number, len(steps))
            spans = opened.read_spans(step=step, validate=validate)
            words = spans.with_columns(
                pl.col(pl.Categorical, pl.Enum).cast(pl.String)
            )  # all readers know text
            words.write_parquet(target / "spans" / f"{'validate' if validate else 'step'}_{step}.parquet")
            rows += len(spans)
        ranked = {name: getattr(opened.digest, name) for name in ("steps", "barriers")}
        for name, table in {**opened.everything.tables(), **ranked}.items():
            table.write_parquet(target / f"{name}.parquet")
    print_line(f"{rows:,} spans of {len(steps)} steps in {target}")
    return 0
