"""Write a run as Parquet files, for whatever reads tables."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Final

from sglang_instrument.cli.tables import print_line, reading
from sglang_instrument.errors import InstrumentError

HELP: Final = """\
Write a run as Parquet (zstd): every span of each step, nested, and the tables of steps, requests, turns and
barriers.

    sglang-instrument export logs/gsm8k_600 --parquet gsm8k_600_parquet
    duckdb -c "select event, sum(self_sec) from 'gsm8k_600_parquet/spans/*.parquet' group by 1"

spans/step_N.parquet, spans/validate_N.parquet   the columns are described in docs/analysis.md
steps.parquet, requests.parquet, turns.parquet, barriers.parquet"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `export`."""
    parser.add_argument("logs", metavar="LOGS", type=Path, help="the experiment's folder, logs/EXPERIMENT")
    parser.add_argument(
        "--parquet", type=Path, required=True, metavar="FOLDER", help="a folder, new or empty"
    )


def run(args: argparse.Namespace) -> int:
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
        steps = opened.digest.steps.select("step", "validate").unique().sort("validate", "step")
        for number, (step, validate) in enumerate(steps.iter_rows()):
            progress(number, len(steps))
            spans = opened.read_spans(step=step, validate=validate)
            words = spans.with_columns(
                pl.col(pl.Categorical, pl.Enum).cast(pl.String)
            )  # all readers know text
            words.write_parquet(target / "spans" / f"{'validate' if validate else 'step'}_{step}.parquet")
            rows += len(spans)
        for name, table in opened.digest.tables().items():
            table.write_parquet(target / f"{name}.parquet")
    print_line(f"{rows:,} spans of {len(steps)} steps in {target}")
    return 0
