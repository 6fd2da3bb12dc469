"""Show how stale samples are when the trainer takes them, and which samples wait for the trainer."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sglang_instrument.analysis.tables.column import Column
from sglang_instrument.cli import select
from sglang_instrument.cli.tables import print_json, print_line, print_table, reading

if TYPE_CHECKING:
    import polars as pl

HELP: Final = """\
Show how stale the samples of each step are: how many versions of the weights the trainer was ahead of those
that made them; and what was in flight, queued, or waiting for the trainer.

    sglang-instrument staleness logs/gsm8k_600
    sglang-instrument staleness logs/gsm8k_600 --step 12 --by-worker --groups

Steps are the trainer's. --json prints {"folder", "steps": [{"step", "samples", "known", "version", "mean",
"p50", "p99", "max", "mixed", "waited_sec", "max_staleness", "over", "ahead", "at_us", "in_flight", "queued",
"waiting"}], "workers": [the same by "worker"], "groups": [{"step", "group", "samples", "slowest", "worker",
"duration_sec", "wait_sec", "versions", "fate"}], "fates": [{"fate", "samples"}], "missing": [sentences]}.
What the log does not hold is null."""

_SHOWN: Final = 12
_STEPS: Final = (
    Column("step", "the trainer's step"),
    Column("samples", "samples that it took", "count"),
    Column("version", "version of the trainer's weights then", "count", gives_way=4),
    Column("mean", "versions from the beginning of a sample to its use, in the mean", "number"),
    Column("p99", "99 % of the samples are at most so many versions old", "number", gives_way=3),
    Column("max", "versions of the stalest sample", "count"),
    Column("over", "samples that are staler than the trainer allows", "count"),
    Column("mixed", "share of samples whose weights changed while they were made", "share", gives_way=2),
    Column("waited", "mean time from the end of a sample to its use", "time"),
    Column("in flight", "requests that ran when the step took its first sample", "count"),
    Column("queued", "of these, requests without an engine call yet", "count", gives_way=1),
    Column("waiting", "samples that were done then, and not taken yet", "count"),
)
_WORKERS: Final = (Column("worker", "the worker that made the samples"), *_STEPS[:9])
_GROUPS: Final = (
    Column("group", "the prompt's group, and the step that took it, or made it if none took it"),
    Column("samples", "how many samples it has", "count"),
    Column("waits", "from the median end of the others to the end of the slowest", "time"),
    Column("versions", "versions that passed for the others meanwhile, in the mean", "number"),
    Column("slowest", "the request that ended last"),
    Column("took", "its duration", "time"),
)
TABLES: Final = {"steps": _STEPS, "--by-worker": _WORKERS, "--groups: the longest waits": _GROUPS}


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
        told = {"steps": steps, "workers": workers, "groups": groups, "fates": counts, "missing": missing}
        print_json({"folder": str(opened.folder), **told})
        return 0
    print_table(
        _STEPS, [_cells(row, load=True) for row in steps], title=f"{opened.name}: staleness, in versions"
    )
    if args.by_worker:
        cells = [(f"worker {row['worker']}", *_cells(row)) for row in workers]
        print_table(_WORKERS, cells, title="\nby the worker that made them")
    if args.groups:
        shown = [_group(row) for row in groups[:_SHOWN]]
        print_table(_GROUPS, shown, title=f"\ngroups that waited for their slowest ({len(groups):,})")
    of_fates = {row["fate"]: row["samples"] for row in counts}
    for sentence in (*staleness_words(steps, of_fates), *missing):
        print_line(sentence)
    return 0


def _chosen(table: pl.DataFrame, wanted: list[int] | None) -> list[dict[str, Any]]:
    """Return the rows of the chosen steps of the trainer."""
    return table.filter(select.within(wanted)).to_dicts()


def _cells(row: dict[str, Any], *, load: bool = False) -> tuple[Any, ...]:
    names = ("samples", "version", "mean", "p99", "max", "over", "mixed", "waited_sec")
    more = ("in_flight", "queued", "waiting") if load else ()
    return (str(row["step"]), *(row[name] for name in (*names, *more)))


def _group(row: dict[str, Any]) -> tuple[Any, ...]:
    named = f"{row['group']}, step {row['step']}"
    return (named, *(row[one] for one in ("samples", "wait_sec", "versions", "slowest", "duration_sec")))
