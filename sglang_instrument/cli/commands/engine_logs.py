"""Print what SGLang's own processes logged about requests: queue, prefill, decode, retractions."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, Final

from sglang_instrument.analysis.tables.engine.requests import ENGINE_REQUESTS
from sglang_instrument.analysis.tables.engine.server_totals import SERVER_TOTALS, WINDOWS
from sglang_instrument.cli import select
from sglang_instrument.cli.columns import NOTHING
from sglang_instrument.cli.numbers import percent
from sglang_instrument.cli.tables import print_json, print_line, print_rows
from sglang_instrument.errors import LogError

if TYPE_CHECKING:
    import polars as pl

    from sglang_instrument.analysis.run.opening import Run

_KINDS: Final = ("queue", "prefill", "decode")
_OF_CALLERS: Final = ("worker", "event", "turns", "finish_reason", "cdf")  # options
#: What commands say where only the engine's processes logged.
ALONE: Final = "no worker logged, so steps and turns are not known"
#: Rows that are shown: the slowest and the last ones.
_WINDOWS_SHOWN: Final = 12
_UNKNOWN: Final = ", ".join(f"{NOTHING} {kind}" for kind in _KINDS)


def show_engine_requests(opened: Run, args: argparse.Namespace) -> int:
    """Print the requests of the engine, the slowest first, whichever process sent them.

    Raises:
        LogError: No process of the engine logged anything.
    """
    from sglang_instrument.analysis.answers.engine.join import (
        engine_request_table,
        engine_summary_of,
        has_engine_logs,
    )
    from sglang_instrument.analysis.answers.servers import are_servers_alone

    if not has_engine_logs(opened):
        raise LogError(
            f"{opened.name}: no engine/ folder; SGLang's processes log if SGLANG_INSTRUMENT=1 is in their "
            'environment and engine_detail is not "off"; `sglang-instrument status` lists the processes'
        )
    requests = engine_request_table(opened).sort("duration_sec", descending=True, nulls_last=True)
    requests = _chosen(opened, requests, args)
    rows = requests.head(args.limit).to_dicts()
    alone = are_servers_alone(opened)
    if args.json:
        callers: dict[str, Any] = {"requests": []} if alone else {}
        engine_requests = ENGINE_REQUESTS.in_json(rows)
        print_json({"folder": str(opened.folder), "engine_requests": engine_requests, **callers})
        return 0
    title = f"{opened.name}: the slowest of {len(requests):,} requests of the engine"
    print_rows(ENGINE_REQUESTS, rows, title=title)
    print_line(engine_line(engine_summary_of(requests)))
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
        raise LogError(f"{opened.name}: the engine's logs know no --{option}: workers log it")
    if args.step:
        steps = select.steps_of(opened, args, opened.everything)
        requests = requests.filter(select.within(steps), validate=args.validate)
    if args.min_tokens is not None:
        requests = requests.filter(pl.col("completion_tokens") >= args.min_tokens)
    if args.max_tokens is not None:
        requests = requests.filter(pl.col("completion_tokens") <= args.max_tokens)
    if args.request is None:
        return requests
    matching = requests.filter(pl.col("rid").str.starts_with(args.request))
    if matching.is_empty():
        raise LogError(f"{opened.name}: no request of the engine with the rid {args.request!r}")
    return matching


def print_servers(opened: Run, window_sec: float | None = None) -> None:
    """Print what each server did, and each window of time; for logs in which no worker tells of steps."""
    from sglang_instrument.analysis.answers.servers import server_rows

    servers = server_rows(opened)
    many = "1 server" if len(servers) == 1 else f"{len(servers)} servers"
    requests = sum(row["requests"] for row in servers)
    title = f"{opened.name}: {many}, {requests:,} requests of the engine"
    print_rows(SERVER_TOTALS, servers, title=title)
    print_windows(opened, window_sec)
    print_line(f"{ALONE}; a trainer that runs with this package logs them, and `doctor` says what to bind")


def print_windows(opened: Run, window_sec: float | None = None) -> None:
    """Print what the engine did in each window of time, which stand in for steps."""
    from sglang_instrument.analysis.answers.servers import window_rows

    windows = window_rows(opened, window_sec)
    if not windows:
        return
    shown = windows
    if len(windows) > _WINDOWS_SHOWN:
        latest = windows[-4:]
        slowest = sorted(windows[:-4], key=lambda row: -(row["p99_sec"] or 0.0))[: _WINDOWS_SHOWN - 4]
        shown = sorted([*slowest, *latest], key=lambda row: int(row["window"]))
    many = "1 window" if len(windows) == 1 else f"{len(windows)} windows"
    print_rows(WINDOWS, shown, title=f"\n{many} of time, in place of steps")
    if len(shown) < len(windows):
        print_line(f"{len(shown)} of {many} are shown, the slowest and the last; --json prints all")
    if windows[0]["cut_by"] == "idle":
        print_line(
            "a window ends where no request was in flight for a while; --window SECONDS cuts by the clock"
        )


def engine_line(engine: dict[str, Any]) -> str:
    """Return a summary of the engine as a line for people."""
    others = engine.get("of_others")
    left_out = f"; {others:,} requests of other clients of these servers are left out" if others else ""
    return f"{_engine_line(engine)}{left_out}"


def _engine_line(engine: dict[str, Any]) -> str:
    if None in engine["shares"].values():
        return f"engine: {engine['requests']:,} requests, whose ends were not logged: {_UNKNOWN}"
    parts = ", ".join(f"{percent(share)} % {kind}" for kind, share in engine["shares"].items())
    of_what = f"the time of {engine['requests']:,} requests"
    line = f"engine: {parts} of {of_what}" if parts else f"engine: {engine['requests']:,} requests"
    return f"{line}; {engine['retractions']:,} retractions" if engine["retractions"] else line
