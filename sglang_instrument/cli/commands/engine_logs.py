"""Print what SGLang's own processes logged about requests: queue, prefill, decode, retractions."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, Final

from sglang_instrument.cli.numbers import NOTHING, count, percent, seconds, short_count
from sglang_instrument.cli.tables import print_json, print_line, print_table
from sglang_instrument.errors import LogError

if TYPE_CHECKING:
    import polars as pl

    from sglang_instrument.analysis.run.opening import Run

_KINDS: Final = ("queue", "prefill", "decode")
_OF_CALLERS: Final = ("worker", "event", "turns", "finish_reason", "cdf")  # options
#: What commands say where only the engine's processes logged.
ALONE: Final = "no worker logged, so steps and turns are not known"
_UNKNOWN: Final = ", ".join(f"{NOTHING} {kind}" for kind in _KINDS)


def show_engine_requests(opened: Run, args: argparse.Namespace) -> int:
    """Print the requests of the engine, the slowest first, whichever process sent them.

    Raises:
        LogError: No process of the engine logged anything.
    """
    from sglang_instrument.analysis.answers.join import (
        engine_request_table,
        engine_summary_of,
        has_engine_logs,
    )
    from sglang_instrument.analysis.answers.servers import are_servers_alone

    if not has_engine_logs(opened):
        raise LogError(
            f"{opened.folder}: no engine/ folder; SGLang's processes log if SGLANG_INSTRUMENT=1 is in their "
            'environment and engine_detail is not "off"; `sglang-instrument status` lists the processes'
        )
    requests = engine_request_table(opened).sort("duration_sec", descending=True, nulls_last=True)
    requests = _chosen(opened, requests, args)
    rows = requests.head(args.limit).to_dicts()
    alone = are_servers_alone(opened)
    if args.json:
        print_json(
            {"folder": str(opened.folder), "engine_requests": rows, **({"requests": []} if alone else {})}
        )
        return 0
    title = f"{opened.name}: the slowest of {len(requests):,} requests of the engine"
    shown = [
        (
            row["rid"],
            count(row["step"]),
            row["scheduler"] or NOTHING,
            seconds(row["duration_sec"]),
            *(seconds(row[f"{kind}_sec"]) for kind in _KINDS),
            count(row["retractions"]),
            count(row["prompt_tokens"]),
            count(row["completion_tokens"]),
        )
        for row in rows
    ]
    columns = ("rid", "step", "scheduler", "time s", *(f"{kind} s" for kind in _KINDS))
    print_table(
        (*columns, "retracted", "prompt", "written"), shown, title=title, optional=("scheduler", "prompt")
    )
    print_line(told(engine_summary_of(requests)))
    if alone:
        print_line(f"{ALONE}; these are the engine's requests, by rid: a turn of a rollout is one of them")
    return 0


def _chosen(opened: Run, requests: pl.DataFrame, args: argparse.Namespace) -> pl.DataFrame:
    """Return the requests that the arguments ask for.

    Raises:
        LogError: An argument asks for what the engine does not log, or for a request that is not there.
    """
    import polars as pl

    unknown = [name for name in _OF_CALLERS if getattr(args, name) not in (None, False)]
    if unknown:
        option = unknown[0].replace("_", "-")
        raise LogError(f"{opened.folder}: the engine's logs know no --{option}: workers log it")
    if args.step is not None:
        requests = requests.filter(pl.col("step") == args.step, pl.col("validate") == args.validate)
    if args.min_tokens is not None:
        requests = requests.filter(pl.col("completion_tokens") >= args.min_tokens)
    if args.max_tokens is not None:
        requests = requests.filter(pl.col("completion_tokens") <= args.max_tokens)
    if args.request is None:
        return requests
    found = requests.filter(pl.col("rid").str.starts_with(args.request))
    if found.is_empty():
        raise LogError(f"{opened.folder}: no request of the engine with the rid {args.request!r}")
    return found


def print_servers(opened: Run) -> None:
    """Print what each server did; for logs in which no worker tells of steps."""
    from sglang_instrument.analysis.answers.servers import server_rows

    servers = server_rows(opened)
    rows = [
        (
            row["server"],
            count(row["requests"]),
            seconds(row["wall_sec"]),
            *(seconds(row[f"{name}_sec"]) for name in ("p50", "p99", "max")),
            *(percent(row["shares"].get(kind)) for kind in _KINDS),
            count(row["retractions"]),
            short_count(row["completion_tokens"]),
            NOTHING if row["tokens_per_sec"] is None else count(round(row["tokens_per_sec"])),
        )
        for row in servers
    ]
    columns = ("server", "req", "wall s", "p50 s", "p99 s", "max s", *(f"{kind}%" for kind in _KINDS))
    many = "1 server" if len(rows) == 1 else f"{len(rows)} servers"
    print_table(
        (*columns, "retracted", "tokens", "tokens/s"),
        rows,
        title=f"{opened.name}: {many}, {sum(row['requests'] for row in servers):,} requests of the engine",
        optional=("wall s", "p50 s"),
    )
    print_line(f"{ALONE}; a trainer that runs with this package logs them")


def print_calls(calls: list[dict[str, Any]]) -> None:
    """Print the calls of one request."""
    shown = [
        (
            NOTHING if call["turn"] is None else str(call["turn"] + 1),
            call["scheduler"] or NOTHING,
            seconds(call["call_sec"]),
            *(seconds(call[f"{kind}_sec"]) for kind in (*_KINDS, "outside")),
            count(call["retractions"]),
            call["why"] or NOTHING,
        )
        for call in calls
    ]
    kinds = (f"{kind} s" for kind in (*_KINDS, "outside"))
    columns = ("turn", "scheduler", "time s", *kinds, "retracted", "why")
    title = "\nwhat SGLang's own processes logged for each call"
    print_table(columns, shown, title=title, optional=("scheduler", "outside s"))


def told(engine: dict[str, Any]) -> str:
    """Return a summary of the engine as a line for people."""
    if None in engine["shares"].values():
        return f"engine: {engine['requests']:,} requests, whose ends were not logged: {_UNKNOWN}"
    parts = ", ".join(f"{percent(share)} % {kind}" for kind, share in engine["shares"].items())
    of_what = f"the time of {engine['requests']:,} requests"
    line = f"engine: {parts} of {of_what}" if parts else f"engine: {engine['requests']:,} requests"
    return f"{line}; {engine['retractions']:,} retractions" if engine["retractions"] else line
