"""Show the slowest requests, or one request with its turns and events."""

from __future__ import annotations

import argparse
import difflib
from typing import TYPE_CHECKING, Any, Final

from sglang_instrument.cli import select
from sglang_instrument.cli.commands import engine_logs
from sglang_instrument.cli.numbers import NOTHING, count, seconds
from sglang_instrument.cli.tables import print_json, print_line, print_table, reading
from sglang_instrument.errors import LogError

if TYPE_CHECKING:
    import polars as pl

    from sglang_instrument.analysis.run.opening import Run

HELP: Final = """\
Show the requests of a run, the slowest first, or one request with its turns and events as a waterfall.

    sglang-instrument requests logs/gsm8k_600 --step 67 --worker 0
    sglang-instrument requests logs/gsm8k_600 --request 43-0-0194-34fc56e1aa47
    sglang-instrument requests logs/gsm8k_600 --cdf           # percentiles by step; with --step by worker
    sglang-instrument requests logs/gsm8k_600 --engine        # as SGLang's own processes logged them, by rid;
                                                              # also where no worker logged

engine s, tool s, rest s   time in the engine, in tools and interactions, and in everything else

--json prints {"folder", "requests": [{"worker", "step", "validate", "request_id", "start_us", "end_us",
"duration_sec", "turns", "response_tokens", "finish_reason", "reward", "error", "engine_sec", "tool_sec",
"interaction_sec", "reward_sec", "rest_sec"}]}; with --request also "events": [{"event", "turn", "start_sec",
"duration_sec", "self_sec", "active_sec", "depth"}], "engine_calls", "engine_logs": [{"turn", ...}]; with
--engine instead "engine_requests": [{"rid", "queue_sec", ...}]; with --cdf "cdf": [{"step", "requests",
"mean_sec", "p50_sec", "p90_sec", "p95_sec", "p99_sec", "p99_9_sec", "max_sec"}]. Turns count from 0."""

_BARS: Final = 32  # characters of a waterfall


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `requests`."""
    select.add_arguments(parser)
    parser.add_argument("--worker", type=int, metavar="R", help="only this worker")
    parser.add_argument("--event", metavar="EVENT", help="order by the time in this event")
    parser.add_argument("--turns", type=int, metavar="N", help="only requests of N turns")
    parser.add_argument("--finish-reason", metavar="WORD", help="only with this finish reason: stop, length")
    parser.add_argument("--min-tokens", type=int, metavar="N", help="only requests of at least N tokens")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="only requests of at most N tokens")
    parser.add_argument("--limit", type=int, default=20, metavar="N", help="number of rows (%(default)s)")
    parser.add_argument("--request", metavar="ID", help="this request with its events")
    parser.add_argument("--cdf", action="store_true", help="percentiles instead of requests")
    parser.add_argument("--engine", action="store_true", help="requests as SGLang logged them")


def run(args: argparse.Namespace) -> int:
    """Print requests, one request, or percentiles."""
    from sglang_instrument.analysis.answers.requests import cdf_table, request_table
    from sglang_instrument.analysis.answers.servers import are_servers_alone
    from sglang_instrument.analysis.run.opening import open_run

    with reading() as progress:
        opened = open_run(args.logs, progress)
        if args.engine or are_servers_alone(opened):
            return engine_logs.show_engine_requests(opened, args)
        every = request_table(opened.everything)
        table = _filtered(opened, select.of_steps(opened, every, args, opened.everything), args)
    if args.request is not None:
        return _show_one(opened, every, args)
    if args.cdf:
        cdf = cdf_table(table, ["step"] if args.step is None else ["step", "worker"])
        if args.json:
            print_json({"folder": str(opened.folder), "cdf": cdf.to_dicts()})
        else:
            _print_cdf(opened, cdf.to_dicts())
        return 0
    rows = table.head(args.limit).to_dicts()
    if args.json:
        print_json({"folder": str(opened.folder), "requests": rows})
        return 0
    _print(f"{opened.name}: the slowest of {len(table):,} requests", rows)
    return 0


def _filtered(opened: Run, table: pl.DataFrame, args: argparse.Namespace) -> pl.DataFrame:
    import polars as pl

    if args.turns is not None:
        table = table.filter(pl.col("turns") == args.turns)
    if args.finish_reason is not None:
        table = table.filter(pl.col("finish_reason") == args.finish_reason)
    if args.min_tokens is not None:
        table = table.filter(pl.col("response_tokens") >= args.min_tokens)
    if args.max_tokens is not None:
        table = table.filter(pl.col("response_tokens") <= args.max_tokens)
    if args.event is None:
        return table
    spans = opened.read_spans(args.step, args.worker, args.validate)
    names = spans["event"].cast(pl.String).unique().to_list()
    if args.event not in names:
        near = difflib.get_close_matches(args.event, names, n=3)
        raise LogError(f"{opened.folder}: no event {args.event!r}; {_offer(near or sorted(names)[:20])}")
    of_event = spans.filter(pl.col("event").cast(pl.String) == args.event)
    spent = of_event.group_by("request_id").agg(in_event=pl.col("duration_sec").sum())
    return table.join(spent, on="request_id").sort("in_event", descending=True).drop("in_event")


def _offer(names: list[str]) -> str:
    return f"there are: {', '.join(names)}"


def _show_one(opened: Run, table: pl.DataFrame, args: argparse.Namespace) -> int:
    from sglang_instrument.analysis.answers.engine_calls import reported_calls
    from sglang_instrument.analysis.answers.join import calls_of_request
    from sglang_instrument.analysis.answers.requests import waterfall

    mine = table.filter(request_id=args.request)
    if mine.is_empty():
        ids = table["request_id"].drop_nulls().to_list()
        near = difflib.get_close_matches(args.request, ids, n=3, cutoff=0.4)
        raise LogError(
            f"{opened.folder}: no request {args.request!r}; {_offer(near)}" if near else _none(opened, args)
        )
    row = mine.row(0, named=True)
    events = waterfall(
        opened.read_spans(row["step"], row["worker"], row["validate"]), args.request
    ).to_dicts()
    calls = reported_calls(opened, row).to_dicts()
    logged = calls_of_request(opened, row)
    if args.json:
        told = {"requests": [row], "events": events, "engine_calls": calls, "engine_logs": logged}
        print_json({"folder": str(opened.folder), **told})
        return 0
    _print(f"request {args.request}, step {row['step']}, worker {row['worker']}", [row])
    whole = max(row["duration_sec"], 1e-9)
    shown = [
        (
            "  " * event["depth"] + event["event"],
            NOTHING if event["turn"] is None else str(event["turn"] + 1),
            seconds(event["start_sec"]),
            seconds(event["duration_sec"]),
            seconds(event["self_sec"]),
            seconds(event["active_sec"]),
            _bar(event, whole),
        )
        for event in events
    ]
    columns = ("event", "turn", "start s", "time s", "self s", "running s", "when".ljust(_BARS))
    print_table(columns, shown, title="", optional=("running s", "self s"))
    if calls:
        _print_calls(calls)
    if logged:
        engine_logs.print_calls(logged)
    return 0


def _print_calls(calls: list[dict[str, Any]]) -> None:
    """Print what the engine reported in its reply to each call."""
    kinds = ("queue", "running", "prefill", "decode", "outside")
    rows = [
        (
            NOTHING if call["turn"] is None else str(call["turn"] + 1),
            seconds(call["duration_sec"]),
            *(seconds(call[f"{kind}_sec"]) for kind in kinds),
            *(count(call[name]) for name in ("prompt_tokens", "cached_tokens", "completion_tokens")),
            count(call["retractions"]),
        )
        for call in calls
    ]
    columns = ("turn", "time s", *(f"{kind} s" for kind in kinds), "prompt", "cached", "written", "retracted")
    print_table(
        columns, rows, title="\nwhat the engine reported for each call", optional=("outside s", "retracted")
    )


def _none(opened: Run, args: argparse.Namespace) -> str:
    return f"{opened.folder}: no request {args.request!r}; `requests` without --request lists them"


def _bar(event: dict[str, Any], whole: float) -> str:
    begin = int(float(event["start_sec"]) / whole * _BARS)
    width = max(1, round(float(event["duration_sec"]) / whole * _BARS))
    return (" " * min(begin, _BARS - 1) + "#" * width)[:_BARS].ljust(_BARS)


def _print(title: str, rows: list[dict[str, Any]]) -> None:
    shown = [
        (
            str(row["request_id"]),
            str(row["step"]),
            str(row["worker"]),
            seconds(row["duration_sec"]),
            seconds(row["engine_sec"]),
            seconds(row["tool_sec"] + row["interaction_sec"]),
            seconds(row["rest_sec"] + row["reward_sec"]),
            count(row["turns"]),
            count(row["response_tokens"]),
            row["finish_reason"] or row["error"] or NOTHING,
            NOTHING if row["reward"] is None else f"{row['reward']:g}",
        )
        for row in rows
    ]
    columns = (
        "request",
        "step",
        "worker",
        "time s",
        "engine s",
        "tool s",
        "rest s",
        "turns",
        "tokens",
        "end",
    )
    print_table((*columns, "reward"), shown, title=title, optional=("rest s", "reward", "worker"))


def _print_cdf(opened: Run, rows: list[dict[str, Any]]) -> None:
    shown = [
        (
            f"step {row['step']}" + (f", worker {row['worker']}" if "worker" in row else ""),
            count(row["requests"]),
            *(seconds(row[f"{name}_sec"]) for name in ("mean", "p50", "p90", "p95", "p99", "p99_9", "max")),
        )
        for row in rows
    ]
    columns = ("of", "requests", "mean s", "p50 s", "p90 s", "p95 s", "p99 s", "p99.9 s", "max s")
    print_table(columns, shown, title=f"{opened.name}: durations of requests", optional=("mean s", "p95 s"))
    print_line("90 % of the requests take at most p90")
