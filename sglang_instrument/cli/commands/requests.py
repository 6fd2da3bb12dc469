"""Show the slowest requests, or one request with its turns and events."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from sglang_instrument.cli import select
from sglang_instrument.cli.columns import Cell, Column, Styled
from sglang_instrument.cli.commands import engine_logs
from sglang_instrument.cli.commands.field_columns import (
    add_fields,
    add_values,
    cells_of,
    columns_of,
    print_fields,
    read_fields,
    with_fields,
)
from sglang_instrument.cli.tables import print_json, print_table, reading, room
from sglang_instrument.errors import InstrumentError, LogError
from sglang_instrument.schema import kind_of

if TYPE_CHECKING:
    import polars as pl

    from sglang_instrument.analysis.run.opening import Run

HELP: Final = """\
Show the requests of a run, the slowest first, or one (--request 43-0-0194) with its events as a waterfall.

    sglang-instrument requests logs/gsm8k_600 --step 67 --worker 0 --fields tool_calls,tokens:max


--json prints {"folder", "requests": [{"worker", "step", "validate", "request_id", "start_us", "end_us",
"duration_sec", "turns", "response_tokens", "finish_reason", "reward", "error", "weight_version",
"first_weight_version", "group", "sample", "resumed_tokens", "engine_sec", "tool_sec", "interaction_sec",
"reward_sec", "rest_sec", "used_step", "fields"}]}; --request, --engine, --cdf print theirs. Turns: from 0."""

_BARS: Final = 32  # characters of a waterfall
_BARS_IF_NARROW: Final = (110, 16)  # a terminal with fewer columns has shorter ones
_KEY: Final = ("step", "validate", "worker", "request_id")
_MOST_OFFERED: Final = 5  # ids in an error

_INTERACTION: Final = Column("interaction", "its time in interactions; only if a request has some", "time", 3)
_VERSION: Final = Column(
    "weights",
    "versions that made its first and last reply; only if a step that trained is known",
    gives_way=7,
)
_USED: Final = Column("trained", "the step that trained on it; only if one is known", "count", 8)
_REQUESTS: Final = (
    Column("request", "its id, as logged"),
    Column("step", "the training step", "count", gives_way=6),
    _USED,
    _VERSION,
    Column("worker", "the rank of its worker", "count", gives_way=5),
    Column("time", "from its begin to its end", "time"),
    Column("engine", "its time in calls of the engine", "time"),
    Column("tool", "its time in tools; concurrent ones count one by one", "time"),
    _INTERACTION,
    Column("rest", "its time in no part before: rewards, parsing, waiting", "time", gives_way=2),
    Column("turns", "how many replies it took", "count", gives_way=4),
    Column("tokens", "tokens of all its replies", "count"),
    Column("end", "its finish reason, or its error", styles={"length": "yellow"}),
    Column("reward", "as logged", "number", gives_way=1),
)
_EVENTS: Final = (
    Column("event", "its name, indented below the event that contains it"),
    Column("turn", "the turn that it belongs to, from 1", "count", gives_way=3),
    Column("start", "its begin, after the begin of the request", "fine time"),
    Column("time", "its duration", "fine time"),
    Column("self", "the same without the events below it", "fine time", gives_way=1),
    Column("running", "how long its coroutine held the event loop; else it was suspended", "fine time", 2),
    Column("when", "its place in the time of the request"),
)
_OF_CALL: Final = (
    Column("turn", "the turn that called, from 1", "count"),
    Column("time", "of the call, as the caller measured it", "time"),
    Column("queue", "waiting for a place in the running batch", "time"),
    Column("running", "in the batch: from the end of the queue to its last token", "time", gives_way=3),
    Column("prefill", "up to its first token", "time"),
    Column("decode", "from there to its last token", "time"),
    Column(
        "outside", "the rest of the call: tokenizers, transport, waiting for the caller's loop", "time", 1
    ),
    Column("prompt", "tokens of the prompt", "count", gives_way=5),
    Column("cached", "those of them that the cache held", "count", gives_way=4),
    Column("written", "tokens of the reply", "count"),
    Column("retracted", "how often the engine took the call out of its batch to free memory", "count", 2),
)
_CDF: Final = (
    Column("of", "the step, or the step and the worker"),
    Column("requests", "how many", "count"),
    Column("mean", "mean duration", "time", gives_way=1),
    Column("p50", "half of the requests take at most this long", "time"),
    Column("p90", "90 % of the requests take at most this long", "time"),
    Column("p95", "95 % of them", "time", gives_way=2),
    Column("p99", "99 % of them", "time"),
    Column("p99.9", "99.9 % of them", "time", gives_way=3),
    Column("max", "the longest one", "time"),
)
TABLES: Final[Mapping[str, Sequence[Column]]] = {
    "requests": _REQUESTS,
    "--request: its events": _EVENTS,
    "--request: what the engine reported for each call": _OF_CALL,
    "--request: what SGLang's own processes logged": engine_logs.CALLS,
    "--engine: the engine's requests": engine_logs.REQUESTS,
    "--cdf: durations": _CDF,
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `requests`."""
    select.add_arguments(parser)
    parser.add_argument("--worker", type=int, metavar="R", help="only this worker")
    add_fields(parser)
    parser.add_argument("--event", metavar="EVENT", help="order by the time in this event")
    parser.add_argument("--turns", type=int, metavar="N", help="only requests of N turns")
    parser.add_argument("--finish-reason", metavar="WORD", help="only with this finish reason: stop, length")
    parser.add_argument("--min-tokens", type=int, metavar="N", help="only requests of at least N tokens")
    parser.add_argument("--max-tokens", type=int, metavar="N", help="only requests of at most N tokens")
    parser.add_argument("--trained", type=int, metavar="N", help="what step N trained on")
    parser.add_argument("--limit", type=int, default=20, metavar="N", help="number of rows (%(default)s)")
    parser.add_argument("--request", metavar="ID", help="this request; the begin of its id will do")
    parser.add_argument("--cdf", action="store_true", help="percentiles by step; with --step by worker")
    parser.add_argument("--engine", action="store_true", help="as SGLang's processes logged them, by rid")


def run(args: argparse.Namespace) -> int:
    """Print requests, one request, or percentiles."""
    from sglang_instrument.analysis.answers.asynchronous.used_steps import with_used_steps
    from sglang_instrument.analysis.answers.requests import cdf_table, request_table
    from sglang_instrument.analysis.answers.servers import are_servers_alone
    from sglang_instrument.analysis.dataset.asked_fields import of_workers

    if args.fields and (args.request or args.cdf or args.engine):
        raise InstrumentError("--fields adds columns to the list of requests; --request shows all fields")
    with reading() as progress:
        opened = select.open_logs(args, args.logs, progress)
        if args.engine or are_servers_alone(opened):
            return engine_logs.show_engine_requests(opened, args)
        every = with_used_steps(request_table(opened.everything), opened.everything)
        table = select.of_steps(opened, every, args, opened.everything)
        table = _filtered(opened, table, args)
        steps = select.steps_of(opened, args, opened.everything)
        fields, sums = read_fields(opened, args, steps, progress)
    if fields:
        select.tell_pruned(opened, steps, left="their requests have no fields")
    if args.request is not None:
        return _show_one(opened, every, args)
    if args.cdf:
        cdf = cdf_table(table, ["step", "worker"] if args.step else ["step"])
        if args.json:
            print_json({"folder": str(opened.folder), "cdf": cdf.to_dicts()})
        else:
            _print_cdf(opened, cdf.to_dicts())
        return 0
    rows = table.head(args.limit).to_dicts()
    add_values(rows, fields, of_workers(sums), _KEY)
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
    if args.trained is not None:
        table = table.filter(pl.col("used_step") == args.trained)
    if args.event is None:
        return table
    steps = select.steps_of(opened, args, opened.everything)
    spans = opened.read_spans(steps, args.worker, args.validate)
    select.tell_pruned(opened, steps)
    names = spans["event"].cast(pl.String).unique().to_list()
    if args.event not in names:
        near = difflib.get_close_matches(args.event, names, n=3)
        raise LogError(f"{opened.name}: no event {args.event!r}; {_offer(near or sorted(names)[:20])}")
    of_event = spans.filter(pl.col("event").cast(pl.String) == args.event)
    spent = of_event.group_by("request_id").agg(in_event=pl.col("duration_sec").sum())
    return table.join(spent, on="request_id").sort("in_event", descending=True).drop("in_event")


def _offer(names: list[str]) -> str:
    return f"there are: {', '.join(names)}"


def _show_one(opened: Run, table: pl.DataFrame, args: argparse.Namespace) -> int:
    import polars as pl

    from sglang_instrument.analysis.answers.engine_calls import reported_calls
    from sglang_instrument.analysis.answers.join import calls_of_request
    from sglang_instrument.analysis.answers.requests import waterfall
    from sglang_instrument.analysis.reading.all_fields import with_texts
    from sglang_instrument.analysis.timing.nesting import nest

    request_id = _meant(opened, table["request_id"].drop_nulls().unique().sort().to_list(), args.request)
    row = table.filter(request_id=request_id).row(0, named=True)
    records = with_texts(opened.read_records(row["step"], row["worker"], row["validate"], texts=True))
    instants = records.filter(pl.col("duration_sec").is_null())
    events = with_fields(waterfall(nest(records), request_id, instants).to_dicts())
    calls = reported_calls(opened, row).to_dicts()
    logged = calls_of_request(opened, row)
    if args.json:
        told = {"requests": [row], "events": events, "engine_calls": calls, "engine_logs": logged}
        print_json({"folder": str(opened.folder), **told})
        return 0
    _print(f"request {request_id}, step {row['step']}, worker {row['worker']}", [row])
    whole = max(row["duration_sec"], 1e-9)
    narrow, short = _BARS_IF_NARROW
    length = short if room() < narrow else _BARS
    shown = [
        (
            "  " * event["depth"] + event["event"],
            _from_one(event["turn"]),
            *(event[f"{name}_sec"] for name in ("start", "duration", "self", "active")),
            _bar(event, whole, length),
        )
        for event in events
    ]
    print_table(_EVENTS, shown, title="\nits events")
    print_fields(events)
    if calls:
        _print_calls(calls)
    if logged:
        engine_logs.print_calls(logged)
    return 0


def _meant(opened: Run, ids: list[str], wanted: str) -> str:
    """Return the one id that is, or begins with, what a person typed."""
    begun = [wanted] if wanted in ids else [one for one in ids if one.startswith(wanted)]
    if len(begun) == 1:
        return begun[0]
    if begun:
        some = f"{len(begun):,} requests begin with {wanted!r}: {', '.join(begun[:_MOST_OFFERED])}"
        raise LogError(f"{opened.name}: {some}{' ...' if len(begun) > _MOST_OFFERED else ''}")
    near = difflib.get_close_matches(wanted, ids, n=3, cutoff=0.4)
    listed = _offer(near) if near else "`requests` without --request lists them"
    raise LogError(f"{opened.name}: no request {wanted!r}; {listed}")


def _print_calls(calls: list[dict[str, Any]]) -> None:
    """Print what the engine reported in its reply to each call."""
    times = ("duration", "queue", "running", "prefill", "decode", "outside")
    counts = ("prompt_tokens", "cached_tokens", "completion_tokens", "retractions")
    rows = [
        (_from_one(call["turn"]), *(call[f"{name}_sec"] for name in times), *(call[name] for name in counts))
        for call in calls
    ]
    print_table(_OF_CALL, rows, title="\nwhat the engine reported for each call")


def _from_one(turn: int | None) -> int | None:
    return None if turn is None else turn + 1


def _bar(event: dict[str, Any], whole: float, length: int) -> Styled:
    from sglang_instrument.report.palette import PART_OF_EVENT, colour_of

    begin = min(int(float(event["start_sec"]) / whole * length), length - 1)
    if event["duration_sec"] is None:  # an instant event
        return Styled(" " * begin + "|", "")
    width = max(1, round(float(event["duration_sec"]) / whole * length))
    phase = PART_OF_EVENT.get(event["event"], kind_of(event["event"]).phase)
    return Styled((" " * begin + "#" * width)[:length], colour_of(phase))


def _print(title: str, rows: list[dict[str, Any]]) -> None:
    interacts = any(row["interaction_sec"] for row in rows)
    is_used = any(row["used_step"] is not None for row in rows)
    left_out = [] if interacts else [_INTERACTION]
    left_out += [] if is_used else [_USED, _VERSION]
    columns = [column for column in _REQUESTS if column not in left_out]
    shown: list[tuple[Cell, ...]] = [
        (
            row["request_id"],
            row["step"],
            *([row["used_step"], _versions(row)] if is_used else []),
            row["worker"],
            row["duration_sec"],
            row["engine_sec"],
            row["tool_sec"],
            *([row["interaction_sec"]] if interacts else []),
            row["rest_sec"] + row["reward_sec"],
            row["turns"],
            row["response_tokens"],
            row["finish_reason"] or row["error"],
            row["reward"],
            *cells_of(row),
        )
        for row in rows
    ]
    print_table([*columns, *columns_of(rows)], shown, title=title)


def _versions(row: dict[str, Any]) -> str | None:
    first, last = row["first_weight_version"], row["weight_version"]
    known = [str(one) for one in dict.fromkeys((first, last)) if one is not None]
    return " to ".join(known) or None


def _print_cdf(opened: Run, rows: list[dict[str, Any]]) -> None:
    times = ("mean", "p50", "p90", "p95", "p99", "p99_9", "max")
    shown = [
        (
            f"step {row['step']}" + (f", worker {row['worker']}" if "worker" in row else ""),
            row["requests"],
            *(row[f"{name}_sec"] for name in times),
        )
        for row in rows
    ]
    print_table(_CDF, shown, title=f"{opened.name}: durations of requests")
