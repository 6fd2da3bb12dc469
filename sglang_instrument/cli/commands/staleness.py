"""Show how stale samples are when the trainer takes them, and which samples wait for the trainer."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sglang_instrument.analysis.tables.training.staleness import (
    FATES,
    GROUPS,
    STALENESS,
    STALENESS_BY_WORKER,
)
from sglang_instrument.cli import select
from sglang_instrument.cli.answer import FOLDER, MISSING, Key
from sglang_instrument.cli.tables import print_json, print_line, print_rows, reading

if TYPE_CHECKING:
    import polars as pl

HELP: Final = """\
Show how stale the samples of each step are: how many versions of the weights the trainer was ahead of those
that made them; and what was in flight, queued, or waiting for the trainer.

    sglang-instrument staleness logs/gsm8k_600
    sglang-instrument staleness logs/gsm8k_600 --step 12 --by-worker --groups

    step  samples  version  mean  p99  max  over limit  mixed weights %  waited s  in flight  waiting
    12        512       11  1.20    3    3           0               18      14.2        640       96

Steps are the trainer's. What the log does not hold is null in JSON, and - in the table."""

_SHOWN: Final = 12
TABLES: Final = (STALENESS, STALENESS_BY_WORKER, GROUPS, FATES)
ANSWER: Final = {
    "folder": FOLDER,
    "steps": Key(STALENESS),
    "workers": Key(STALENESS_BY_WORKER),
    "groups": Key(GROUPS),
    "fates": Key(FATES),
    "missing": MISSING,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `staleness`."""
    parser.add_argument("logs", metavar="LOGS", type=Path, help=select.LOGS_HELP)
    select.add_step(parser, "only these steps of the trainer: 12 or 12-20; repeatable")
    parser.add_argument("--worker", type=int, metavar="R", help="only samples of this worker")
    parser.add_argument("--by-worker", action="store_true", help="also by the worker that made the samples")
    parser.add_argument("--groups", action="store_true", help="also groups that waited for their slowest")
    parser.add_argument("--json", action="store_true", help="print JSON")
    select.add_ray(parser)
    parser.set_defaults(validate=False)


def run(args: argparse.Namespace) -> int:
    """Print the staleness of the samples by step, and with the options by worker and group."""
    import polars as pl

    from sglang_instrument.analysis.answers.asynchronous import fates, staleness
    from sglang_instrument.analysis.answers.asynchronous.words import staleness_words

    with reading() as progress:
        opened = select.open_logs(args, args.logs, progress)
        wanted = select.steps_of(opened, args)
        digest = opened.digest
        rows = fates.sample_fates(digest)
        if args.worker is not None:
            rows = rows.filter(worker=args.worker)
        load = staleness.load_table(digest, rows)
        steps = _chosen(staleness.staleness_table(rows).join(load, on="step", how="left"), wanted)
        workers = _chosen(staleness.staleness_table(rows, by_worker=True), wanted)
        groups = _chosen(staleness.group_table(rows), wanted)
        missing = staleness.missing_of(rows, digest)
        counts = rows.group_by("fate").agg(samples=pl.len().cast(pl.Int64)).sort("fate").to_dicts()
    if args.json:
        answer = {"steps": STALENESS.in_json(steps), "workers": STALENESS_BY_WORKER.in_json(workers)}
        answer |= {"groups": GROUPS.in_json(groups), "fates": FATES.in_json(counts)}
        print_json({"folder": str(opened.folder), **answer, "missing": missing})
        return 0
    print_rows(STALENESS, steps, title=f"{opened.name}: staleness, in versions")
    if args.by_worker:
        print_rows(STALENESS_BY_WORKER, workers, title="\nby the worker that made them")
    if args.groups:
        title = f"\ngroups that waited for their slowest ({len(groups):,})"
        print_rows(GROUPS, groups[:_SHOWN], title=title)
    of_fates = {row["fate"]: row["samples"] for row in counts}
    for sentence in (*staleness_words(steps, of_fates), *missing):
        print_line(sentence)
    return 0


def _chosen(table: pl.DataFrame, wanted: list[int] | None) -> list[dict[str, Any]]:
    """Return the rows of the chosen steps of the trainer."""
    return table.filter(select.within(wanted)).to_dicts()
