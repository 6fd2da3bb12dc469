"""Show the weight updates by part and server, and from which weights replies and cached prefixes came."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from sglang_instrument.analysis.tables.column import Column
from sglang_instrument.cli import select
from sglang_instrument.cli.tables import print_json, print_line, print_table, print_told, reading
from sglang_instrument.errors import LogError

if TYPE_CHECKING:
    import polars as pl

HELP: Final = """\
Show each weight update: its parts, its servers, the calls that stood still, the last server.

    sglang-instrument weights logs/gsm8k_600
    sglang-instrument weights logs/gsm8k_600 --update 3     # by server
    sglang-instrument weights logs/gsm8k_600 --lineage      # which weights made replies and cached prefixes

--json prints {"folder", "updates": [{"update", "weight_version", "step", "start_us", "end_us", "wall_sec",
"pause_sec", "drain_sec", "transfer_sec", "resume_sec", "flush_sec", "is_done", "servers": [{"server", the
same parts, "start_us", "end_us", "is_done"}], "last", "last_by_sec", "running", "in_flight", "lost_sec",
"resumed", "aborted", "aborted_tokens"}], "findings": [{"cause", "sentence", "advice", "evidence"}],
"missing": [sentences]} and, with --lineage, "lineage": [{"rid", "request_id", "turn", "step", "server",
"scheduler", "start_us", "end_us", "label", "first_weights", "weights", "prefix_weights", "updates_during",
"updates_since_flush", "prompt_tokens", "cached_tokens", "stale_least", "stale_most", "label_is_wrong"}]. What
the log does not tell is null."""

_PARTS: Final = (
    Column("pause", "time in which generation was being paused", "time"),
    Column("drain", "time in which an engine waited for its calls to end", "time", gives_way=3),
    Column("transfer", "time in which some server received weights", "time"),
    Column("resume", "time in which generation was being resumed", "time", gives_way=2),
    Column("flush", "time in which caches were flushed", "time", gives_way=1),
)
_UPDATES: Final = (
    Column("update", "its number in the log, from 1"),
    Column("version", "the version that the trainer or the engine gave these weights"),
    Column("wall", "from its first record to its last", "time"),
    *_PARTS,
    Column("stalled", "calls in flight while generation stood still", "count"),
    Column("lost", "the time that these calls stood still, summed", "time"),
    Column("aborted", "calls that ended as aborted, and whose request did not go on", "count"),
    Column("last", "the server that was done last", gives_way=5),
    Column("by", "how much later than the server before it", "time", gives_way=4),
)
_SERVERS: Final = (Column("server", "the server, or the process that speaks to it"), *_PARTS)
_LINEAGE: Final = (
    Column("weights", "the version with which the reply began, or the number of its update"),
    Column("calls", "how many calls", "count"),
    Column("mixed", "calls whose reply was written with more than one version", "count"),
    Column("tokens", "tokens of the replies", "count", gives_way=1),
    Column("cached", "tokens of the prompts that came from the cache", "count"),
    Column("stale from", "of these, at least so many are of older weights", "count"),
    Column("to", "of these, at most so many are of older weights", "count"),
    Column("wrong labels", "replies whose label contradicts the updates", "count"),
)
_CALLS: Final = (
    Column("call", "the engine's name of the call"),
    Column("server", "the scheduler", gives_way=1),
    Column("weights", "the version with which the reply began"),
    Column("prefix", "the oldest version of which its cached prefix may be"),
    Column("cached", "tokens of its prompt that came from the cache", "count"),
    Column("stale from", "of these, at least so many are of older weights", "count"),
    Column("to", "of these, at most so many are of older weights", "count"),
    Column("label", "the version that the reply says"),
)
TABLES: Final = {
    "updates": _UPDATES,
    "--update: by server": _SERVERS,
    "--lineage: replies by their weights": _LINEAGE,
    "--lineage: calls with a prefix of older weights, or a wrong label": _CALLS,
}
_PART_NAMES: Final = tuple(f"{column.name}_sec" for column in _PARTS)
_SHOWN: Final = 20
_NO_CALL: Final = (
    "no engine call has a lineage: SGLang's own processes record calls and updates (SGLANG_INSTRUMENT=1 in "
    'their environment, `engine_detail` "requests", the default)'
)
_UNKNOWN: Final = (
    "{unknown:,} of {all:,} calls have no lineage: no scheduler that logs its updates served them "
    '(`engine_detail` "requests", the default, records both)'
)
_LIMITS: Final = (
    "the numbers of older tokens are limits: the log does not tell which weights computed each token of the "
    "cache"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `weights`."""
    parser.add_argument("logs", metavar="LOGS", type=Path, help=select.LOGS_HELP)
    one = parser.add_mutually_exclusive_group()
    one.add_argument("--update", type=int, metavar="N", help="this update by server")
    one.add_argument("--lineage", action="store_true", help="which weights made replies and prefixes")
    parser.add_argument("--json", action="store_true", help="print JSON")
    select.add_ray(parser)


def run(args: argparse.Namespace) -> int:
    """Print the updates, one of them by server, or the lineage of calls."""
    from sglang_instrument.analysis import lineage, weight_updates, weights_findings
    from sglang_instrument.analysis.answers.weights.updates import missing_of
    from sglang_instrument.analysis.verdict.advice import advice_of

    with reading() as progress:
        opened = select.open_logs(args, args.logs, progress)
        opened.demand_log()
        select.tell_pruned(opened)
        updates, found = weight_updates(opened), weights_findings(opened)
        calls = lineage(opened) if args.lineage else None
    missing = missing_of(updates)
    if args.update is not None:
        updates = [row for row in updates if row["update"] == args.update] or _no_such(args.update, updates)
    found = [replace(one, advice=advice_of(one)) for one in found]
    if args.json:
        told = [
            {name: getattr(one, name) for name in ("cause", "sentence", "advice", "evidence")}
            for one in found
        ]
        more = {} if calls is None else {"lineage": calls.to_dicts()}
        print_json(
            {"folder": str(opened.folder), "updates": updates, "findings": told, "missing": missing, **more}
        )
        return 0
    if calls is not None:
        _print_lineage(opened.name, calls)
    elif args.update is not None:
        _print_servers(opened.name, updates[0])
    elif updates:
        _print_updates(opened.name, updates)
        for sentence in missing:
            print_line(sentence)
    else:
        print_line(f"{opened.name}: {missing[0]}")
    for one in found:
        print_told("finding", one.sentence)
        print_told("advice", one.advice.replace("LOGS", shlex.quote(str(args.logs))))
    return 0


def _no_such(wanted: int, updates: list[dict[str, Any]]) -> list[dict[str, Any]]:
    there = f"there are {len(updates)}, counted from 1" if updates else "there are none"
    raise LogError(f"no update {wanted}; {there}")


def _print_updates(name: str, updates: list[dict[str, Any]]) -> None:
    rows = [
        (
            str(row["update"]) if row["is_done"] else f"{row['update']} failed",
            row["weight_version"],
            row["wall_sec"],
            *(row[part] for part in _PART_NAMES),
            row["in_flight"],
            row["lost_sec"],
            row["aborted"],
            row["last"],
            row["last_by_sec"],
        )
        for row in updates
    ]
    print_table(_UPDATES, rows, title=f"{name}: weight updates")


def _print_servers(name: str, update: dict[str, Any]) -> None:
    version = f", version {update['weight_version']}" if update["weight_version"] is not None else ""
    rows = [(row["server"], *(row[part] for part in _PART_NAMES)) for row in update["servers"]]
    print_table(_SERVERS, rows, title=f"{name}: update {update['update']}{version}, the last server last")


def _print_lineage(name: str, calls: pl.DataFrame) -> None:
    import polars as pl

    from sglang_instrument.analysis import lineage_by_weights

    told = calls.drop_nulls("first_weights")
    if not told.is_empty():
        rows = [tuple(row.values()) for row in lineage_by_weights(told).to_dicts()]
        print_table(_LINEAGE, rows, title=f"{name}: replies by their weights")
    odd = told.filter((pl.col("stale_most") > 0) | pl.col("label_is_wrong"))
    if not odd.is_empty():
        _print_calls(odd)
    if calls.is_empty():
        print_line(f"{name}: {_NO_CALL}")
    elif len(told) < len(calls):
        print_line(_UNKNOWN.format(unknown=len(calls) - len(told), all=len(calls)))
    if (told["stale_least"] != told["stale_most"]).any():
        print_line(_LIMITS)


def _print_calls(odd: pl.DataFrame) -> None:
    names = ("rid", "scheduler", "first_weights", "prefix_weights", "cached_tokens")
    shown = odd.select(*names, "stale_least", "stale_most", "label").head(_SHOWN)
    more = f", the first {_SHOWN} of {len(odd):,}" if len(odd) > _SHOWN else ""
    print_table(_CALLS, shown.rows(), title=f"\na prefix of older weights, or a wrong label{more}")
