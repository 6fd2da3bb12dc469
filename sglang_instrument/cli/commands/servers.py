"""Show by server, and over time: load, tokens, queue, cache, and whether conversations stay."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, Final

from sglang_instrument.analysis.tables.column import Cell, Column
from sglang_instrument.cli import select
from sglang_instrument.cli.tables import print_json, print_line, print_table, reading

if TYPE_CHECKING:
    import polars as pl

HELP: Final = """\
Show the servers that ran the engine's calls: is the router balanced, and do conversations stay where their
cache is?

    sglang-instrument servers logs/gsm8k_600
    sglang-instrument servers logs/gsm8k_600 --step 67 --over-time   # the same in slices of time
    sglang-instrument servers logs/gsm8k_600 --over-time 24

--json prints {"folder", "servers": [{"server", "calls", "conversations", "stayed", "moved_in", "load",
"most_load", "call_sec", "p50_sec", "p99_sec", "queue_sec", "queue_share", "prompt_tokens", "cached_tokens",
"cached_share", "completion_tokens", "tokens_per_sec", "retractions", "waiting", "kv_share",
"kv_held_share"}], "balance": {"servers", "busiest", "times_mean"}, "affinity": {"conversations",
"later_calls", "stayed", "stayed_share", "cached_share", "cached_share_stayed", "cached_share_moved",
"read_again_tokens"}, "unknown": [what the log does not tell]} and, with --over-time, "over_time": [{"step",
"validate" or "slice", "from_sec", "to_sec", "server", ...}]. What is not known is null."""

_SLICES: Final = 16  # of the column `over time`
_SERVERS: Final = (
    Column("server", "the process that served the calls, its scheduler if it has several, or its address"),
    Column("calls", "how many engine calls it served", "count"),
    Column("talks", "of how many conversations: requests of the rollout", "count", gives_way=5),
    Column("moved in", "later calls of conversations whose call before ran on another server", "count"),
    Column("load", "its calls in flight, on average while any server had some", "number"),
    Column(
        "over time",
        "the same in 16 slices of the time; the highest bar is the highest load of any",
        gives_way=2,
    ),
    Column("most", "the most calls in flight at once", "count", gives_way=4),
    Column("p50", "half of its calls took at most this long", "time", gives_way=6),
    Column("p99", "99 % of its calls took at most this long", "time", gives_way=3),
    Column("queue", "share of its calls' time in which they waited for a place in the batch", "share"),
    Column("cached", "share of the prompts' tokens that were in its cache", "share"),
    Column("written", "tokens of its replies", "count"),
    Column("tokens/s", "tokens of its replies a second, while any server had calls", "count", gives_way=7),
    Column("retracted", "how often it took calls out of its batch to free memory", "count"),
    Column(
        "KV",
        "the most of its key-value cache that was in use at an admission, kept prefixes included",
        "share",
        8,
    ),
    Column("KV held", "the same without prefixes that no running call uses", "share", gives_way=1),
)
_OVER_TIME: Final = (
    Column("when", "the step, or the slice of time since the first call"),
    Column("server", "the server"),
    Column("calls", "calls that began", "count"),
    Column("load", "calls in flight, on average", "number"),
    Column("p99", "99 % of these calls took at most this long", "time", gives_way=1),
    Column("queue", "share of these calls' time in which they waited for a place in the batch", "share"),
    Column("cached", "share of their prompts' tokens that were in the cache", "share"),
    Column("written", "tokens of their replies", "count", gives_way=2),
    Column("retracted", "how often they were taken out of the batch to free memory", "count"),
    Column("KV held", "the most of the key-value cache that running calls held at an admission", "share"),
)
TABLES: Final = {"servers": _SERVERS, "--over-time": _OVER_TIME}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `servers`."""
    select.add_arguments(parser)
    parser.add_argument(
        "--over-time",
        metavar="SLICES",
        nargs="?",
        type=_slices,
        const=0,
        help="also step by step, or in so many slices of the time (12 of a single step)",
    )


def _slices(text: str) -> int:
    if not text.isdecimal() or not 0 < int(text) <= 1000:
        raise argparse.ArgumentTypeError(
            f"must be a number of slices from 1 to 1000, got {text!r}; put LOGS first"
        )
    return int(text)


def run(args: argparse.Namespace) -> int:
    """Print a row for each server, how balanced they are and where conversations went."""
    from sglang_instrument.analysis.answers.routing.conversations import affinity, followed_calls
    from sglang_instrument.analysis.answers.routing.load import (
        balance,
        load_by_slice,
        load_over_time,
        server_table,
    )
    from sglang_instrument.analysis.answers.routing.samples import server_samples
    from sglang_instrument.analysis.answers.routing.server_calls import server_calls
    from sglang_instrument.analysis.answers.routing.words import (
        affinity_words,
        balance_words,
        bars,
        unknown_words,
    )

    with reading() as progress:
        opened = select.open_logs(args, args.logs, progress)
        steps = select.steps_of(opened, args) if args.step else None
        every = server_calls(opened)
        calls = every.filter(select.chosen(args, steps))
        samples = server_samples(opened, calls)
        table = server_table(calls, samples)
        told, kept = balance(table), affinity(followed_calls(calls))
        asked = args.over_time is not None
        over_time = load_over_time(calls, samples, args.over_time or None) if asked else None
        drawn = bars(load_by_slice(calls, _SLICES))
    unknown = unknown_words(table)
    if args.json:
        answer = {
            "folder": str(opened.folder),
            "servers": table.to_dicts(),
            "balance": told,
            "affinity": kept,
        }
        more = {} if over_time is None else {"over_time": over_time.to_dicts()}
        print_json({**answer, "unknown": unknown, **more})
        return 0
    where = select.named(steps, validate=args.validate)
    many = f"{told['servers']} server{'' if told['servers'] == 1 else 's'}"
    title = f"{opened.name}{where}: {many}, {len(calls):,} engine calls"
    if calls.is_empty():
        print_line(f"{opened.name}{where}: no server is known")
    else:
        print_table(_SERVERS, _rows(table, drawn), title=title)
    for line in filter(None, (balance_words(told), *affinity_words(kept), *unknown)):
        print_line(line)
    if over_time is not None and not calls.is_empty():
        print_table(_OVER_TIME, _over_time_rows(over_time), title="\nover time")
    return 0


def _rows(table: pl.DataFrame, bars: dict[str | None, str]) -> list[tuple[Cell, ...]]:
    names = ("load", "bars", "most_load", "p50_sec", "p99_sec", "queue_share", "cached_share")
    more = ("completion_tokens", "tokens_per_sec", "retractions", "kv_share", "kv_held_share")
    return [
        tuple(
            {**row, "bars": bars.get(row["server"], "")}[name]
            for name in ("server", "calls", "conversations", "moved_in", *names, *more)
        )
        for row in table.iter_rows(named=True)
    ]


def _over_time_rows(table: pl.DataFrame) -> list[tuple[Cell, ...]]:
    names = ("calls", "load", "p99_sec", "queue_share", "cached_share", "completion_tokens", "retractions")
    return [
        (_when(row), row["server"], *(row[name] for name in (*names, "kv_held_share")))
        for row in table.iter_rows(named=True)
    ]


def _when(row: dict[str, Any]) -> str | None:
    if "slice" in row:
        return f"{row['from_sec']:,.1f} to {row['to_sec']:,.1f} s"
    return None if row["step"] is None else f"step {row['step']}"
