"""Show the slowest requests, or one request with its turns and events."""

from __future__ import annotations

import argparse
import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from sglang_instrument.analysis.tables.column import Styled
from sglang_instrument.analysis.tables.engine.requests import ENGINE_REQUESTS, LOGGED_CALLS, REPORTED_CALLS
from sglang_instrument.analysis.tables.from_fields import REQUEST, with_logged_fields
from sglang_instrument.analysis.tables.rollout.agents import REQUEST_TREES
from sglang_instrument.analysis.tables.rollout.durations import DURATIONS
from sglang_instrument.analysis.tables.rollout.request_events import REQUEST_EVENTS
from sglang_instrument.analysis.tables.rollout.requests import REQUESTS
from sglang_instrument.cli import select
from sglang_instrument.cli.answer import FOLDER, Key
from sglang_instrument.cli.commands import engine_logs, request_trees
from sglang_instrument.cli.commands.field_columns import (
    add_fields,
    add_values,
    columns_of,
    print_fields,
    read_fields,
    with_fields,
)
from sglang_instrument.cli.commands.unbound import print_unbound, words_for_nothing
from sglang_instrument.cli.tables import print_json, print_line, print_rows, reading, room
from sglang_instrument.errors import InstrumentError, LogError
from sglang_instrument.schema import kind_of

if TYPE_CHECKING:
    import polars as pl

    from sglang_instrument.analysis.run.opening import Run

HELP: Final = """\
Show the requests of a run, the slowest first, or one (--request 43-0-0194) with its events as a waterfall.

    sglang-instrument requests logs/gsm8k_600 --step 67 --worker 0 --fields tool_calls,tokens:max

    request     step  worker  duration s  engine s  tool s  other s  turns  tokens  finish reason  reward
    67-0-0012     67       0        41.2      38.0     2.1      1.1      4     812  stop                1"""

TABLES: Final = (
    REQUESTS,
    REQUEST_EVENTS,
    REPORTED_CALLS,
    LOGGED_CALLS,
    ENGINE_REQUESTS,
    DURATIONS,
    REQUEST_TREES,
)
ANSWER: Final = {
    "folder": FOLDER,
    "requests": Key(REQUESTS, optional=True),
    "events": Key(REQUEST_EVENTS, optional=True),
    "engine_calls": Key(REPORTED_CALLS, optional=True),
    "engine_logs": Key(LOGGED_CALLS, optional=True),
    "engine_requests": Key(ENGINE_REQUESTS, optional=True),
    "cdf": Key(DURATIONS, optional=True),
    "request_trees": Key(REQUEST_TREES, optional=True),
}
_BARS: Final = 32  # characters of a waterfall
_BARS_IF_NARROW: Final = (110, 16)  # a terminal with fewer columns has shorter ones
_PLACE: Final = ("step", "validate", "worker")
_MOST_OFFERED: Final = 5  # ids in an error


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
    parser.add_argument("--tree", action="store_true", help="requests of agents below those they work for")
    parser.add_argument("--cdf", action="store_true", help="percentiles by step; with --step by worker")
    parser.add_argument("--engine", action="store_true", help="as SGLang's processes logged them, by rid")


def run(args: argparse.Namespace) -> int:
    """Print requests, one request, or percentiles."""
    from sglang_instrument.analysis.answers.asynchronous.used_steps import with_trained_steps
    from sglang_instrument.analysis.answers.requests import cdf_table, request_table
    from sglang_instrument.analysis.answers.servers import are_servers_alone
    from sglang_instrument.analysis.tables.asked_fields import of_workers

    if args.fields and (args.request or args.cdf or args.engine):
        raise InstrumentError("--fields adds columns to the list of requests; --request shows all fields")
    with reading() as progress:
        opened = select.open_logs(args, args.logs, progress)
        if args.engine or are_servers_alone(opened):
            return engine_logs.show_engine_requests(opened, args)
        if args.tree:
            return request_trees.show_request_trees(opened, args)
        every = with_trained_steps(request_table(opened.everything), opened.everything)
        table = select.of_steps(opened, every, args, opened.everything)
        steps = select.steps_of(opened, args, opened.everything)
        chosen = {"steps": steps, "worker": args.worker, "validate": args.validate}
        table = with_logged_fields(REQUESTS, opened, table, REQUEST, **chosen, progress=progress)
        table = _filtered(opened, table, args)
        fields, sums = read_fields(opened, args, steps, progress)
    if fields:
        select.tell_pruned(opened, steps, left="their requests have no fields")
    if args.request is not None:
        return _show_one(opened, every, chosen, args)
    if args.cdf:
        cdf = cdf_table(table, ["step", "worker"] if args.step else ["step"]).to_dicts()
        if args.json:
            print_json({"folder": str(opened.folder), "cdf": DURATIONS.in_json(cdf)})
        else:
            print_rows(DURATIONS, cdf, title=f"{opened.name}: durations of requests")
        return 0
    rows = table.head(args.limit).to_dicts()
    add_values(rows, fields, of_workers(sums), REQUEST)
    if args.json:
        print_json({"folder": str(opened.folder), "requests": REQUESTS.in_json(rows)})
        return 0
    title = f"{opened.name}: the slowest of {len(table):,} requests" if rows else f"{opened.name}: requests"
    nothing = "" if rows else words_for_nothing(opened)
    print_rows(REQUESTS, rows, title=title, more=columns_of(rows), nothing=nothing)
    print_unbound(opened)
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
        table = table.filter(pl.col("trained_step") == args.trained)
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


@dataclass(frozen=True)
class _Shown:
    """A request, with rows of `REQUEST_EVENTS`, `REPORTED_CALLS` and `LOGGED_CALLS`."""

    row: dict[str, Any]
    events: list[dict[str, Any]]
    calls: list[dict[str, Any]]
    logged: list[dict[str, Any]]


def _show_one(opened: Run, every: pl.DataFrame, chosen: dict[str, Any], args: argparse.Namespace) -> int:
    """Print the requests of one id in a step of a worker: several, where a retry used the id again."""
    import polars as pl

    table = every.filter(select.within(chosen["steps"]))
    if chosen["worker"] is not None:
        table = table.filter(worker=chosen["worker"])
    request_id = _meant(opened, table["request_id"].drop_nulls().unique().sort().to_list(), args.request)
    of_id = table.filter(request_id=request_id).sort(pl.col("validate") != args.validate, maintain_order=True)
    place = of_id.select(*_PLACE).row(0, named=True)
    is_there = pl.all_horizontal(pl.col(name).eq_missing(value) for name, value in place.items())
    requests = [_shown(opened, row) for row in of_id.filter(is_there).sort("attempt").to_dicts()]
    if args.json:
        calls = [call for request in requests for call in request.calls]
        logged = [call for request in requests for call in request.logged]
        events = [event for request in requests for event in request.events]
        print_json(
            {
                "folder": str(opened.folder),
                "requests": REQUESTS.in_json([request.row for request in requests]),
                "events": REQUEST_EVENTS.in_json(events),
                "engine_calls": REPORTED_CALLS.in_json(calls),
                "engine_logs": LOGGED_CALLS.in_json(logged),
            }
        )
        return 0
    title = f"request {request_id}, step {place['step']}, worker {place['worker']}"
    print_rows(REQUESTS, [request.row for request in requests], title=title)
    for request in requests:
        _print_one(request, f"attempt {request.row['attempt'] + 1}: " if len(requests) > 1 else "")
    others = of_id.filter(~is_there).select(*_PLACE).unique().sort(*_PLACE).to_dicts()
    if others:
        print_line(f"the same id is also in {', '.join(map(_name_place, others))}: --step, --worker show it")
    return 0


def _shown(opened: Run, row: dict[str, Any]) -> _Shown:
    import polars as pl

    from sglang_instrument.analysis.answers.engine.calls import reported_calls
    from sglang_instrument.analysis.answers.engine.join import calls_of_request
    from sglang_instrument.analysis.answers.requests import waterfall
    from sglang_instrument.analysis.answers.unfinished import spans_of_request
    from sglang_instrument.analysis.digests.record_attempts import attempts_of
    from sglang_instrument.analysis.reading.all_fields import with_texts
    from sglang_instrument.analysis.timing.nesting import nest

    records = with_texts(opened.read_records(row["step"], row["worker"], row["validate"], texts=True))
    records = records.with_columns(attempts_of(records))
    instants = records.filter(pl.col("duration_sec").is_null())
    opened_spans = spans_of_request(opened, row)
    events = waterfall(nest(records), row["request_id"], instants, row["attempt"], opened_spans)
    tables = (
        with_fields(events.to_dicts()),
        reported_calls(opened, row).to_dicts(),
        calls_of_request(opened, row),
    )
    return _Shown(row, *([{**line, "attempt": row["attempt"]} for line in table] for table in tables))


def _print_one(request: _Shown, attempt: str) -> None:
    bars = {"when": _bars(max(request.row["duration_sec"] or 0.0, 1e-9))}
    print_rows(REQUEST_EVENTS, request.events, title=f"\n{attempt}its events", cells=bars)
    print_fields(request.events)
    if request.calls:
        title = f"\n{attempt}what the engine reported for each call"
        print_rows(REPORTED_CALLS, request.calls, title=title)
    if request.logged:
        title = f"\n{attempt}what SGLang's own processes logged for each call"
        print_rows(LOGGED_CALLS, request.logged, title=title)


def _name_place(place: dict[str, Any]) -> str:
    kind = "validation" if place["validate"] else "step"
    return f"{kind} {place['step']} worker {place['worker']}"


def _meant(opened: Run, ids: list[str], wanted: str) -> str:
    """Return the one id that is, or begins with, what a person typed."""
    begun = [wanted] if wanted in ids else [request_id for request_id in ids if request_id.startswith(wanted)]
    if len(begun) == 1:
        return begun[0]
    if begun:
        some = f"{len(begun):,} requests begin with {wanted!r}: {', '.join(begun[:_MOST_OFFERED])}"
        raise LogError(f"{opened.name}: {some}{' ...' if len(begun) > _MOST_OFFERED else ''}")
    near = difflib.get_close_matches(wanted, ids, n=3, cutoff=0.4)
    listed = _offer(near) if near else "`requests` without --request lists them"
    raise LogError(f"{opened.name}: no request {wanted!r}; {listed}")


def _bars(whole: float) -> Callable[[Mapping[str, Any]], Styled]:
    """Return what draws an event in the time of its request, which lasted so many seconds."""
    from sglang_instrument.report.palette import PART_OF_EVENT, colour_of

    narrow, short = _BARS_IF_NARROW
    length = short if room() < narrow else _BARS

    def draw(event: Mapping[str, Any]) -> Styled:
        begin = min(int(float(event["start_sec"]) / whole * length), length - 1)
        if event["duration_sec"] is None:  # an instant event
            return Styled(" " * begin + "|", "")
        width = max(1, round(float(event["duration_sec"]) / whole * length))
        phase = PART_OF_EVENT.get(event["event"], kind_of(event["event"]).phase)
        return Styled((" " * begin + "#" * width)[:length], colour_of(phase))

    return draw
