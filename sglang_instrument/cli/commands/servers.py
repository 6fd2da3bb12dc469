"""Show by server, and over time: load, tokens, queue, cache, and whether conversations stay."""

from __future__ import annotations

import argparse
from typing import Any, Final

from sglang_instrument.analysis.tables.engine.idle import IDLE
from sglang_instrument.analysis.tables.engine.schedulers import SCHEDULERS
from sglang_instrument.analysis.tables.engine.servers import SERVERS, SERVERS_OVER_TIME
from sglang_instrument.cli import select
from sglang_instrument.cli.answer import FOLDER, MISSING, Key
from sglang_instrument.cli.tables import print_json, print_line, print_rows, reading

HELP: Final = """\
Show the servers that ran the engine's calls: is the router balanced, and do conversations stay where their
cache is?

    sglang-instrument servers logs/gsm8k_600
    sglang-instrument servers logs/gsm8k_600 --step 67 --over-time   # the same in slices of time
    sglang-instrument servers logs/gsm8k_600 --over-time 24
    sglang-instrument servers logs/gsm8k_600 --idle                  # when they had nothing to do, and why

    server    calls  conversations  moved here  mean in flight  p99 s  queue %  cached %  retractions
    server_0    170             89          62            5.77   2.36        0        48            0
    server_1    170             87          65            5.88   2.79        0        49            0

What is not known is null in JSON, and - in the table."""

_SLICES: Final = 16  # of the column `over time`
_LEAST_SHARE: Final = 0.01  # of a server's time: smaller parts are printed for all servers alone
_MOST_SERVERS: Final = 4  # that are printed one by one; --json has all
TABLES: Final = (SERVERS, SERVERS_OVER_TIME, SCHEDULERS, IDLE)
_BALANCE: Final = {
    "servers": Key("integer", "how many have a name, and conversations if any has some"),
    "busiest": Key("string", "the server with most time in calls"),
    "times_mean": Key("number", "its time in calls over the mean of all"),
}
_AFFINITY: Final = {
    "conversations": Key("integer", "of more than one call"),
    "later_calls": Key("integer", "their calls after the first, whose server and that before are known"),
    "stayed": Key("integer", "how many of these had the same server"),
    "stayed_share": Key("number", "the same as a share"),
    "cached_share": Key("number", "share of the prompts' tokens that was in a cache"),
    "cached_share_stayed": Key("number", "the same of calls that stayed"),
    "cached_share_moved": Key("number", "the same of calls that moved"),
    "read_again_tokens": Key("integer", "tokens that a server had read or written, and a server read again"),
}
_GPUS: Final = {
    "serving_busy_share": Key("number", "how busy GPUs were while calls were in flight, from 0 to 1"),
    "idle_busy_share": Key("number", "the same while none was; null where no gauge is of such a time"),
}
ANSWER: Final = {
    "folder": FOLDER,
    "servers": Key(SERVERS),
    "balance": Key(_BALANCE, "how evenly the servers share the work"),
    "affinity": Key(_AFFINITY, "whether conversations stay where their cache is"),
    "unknown": MISSING,
    "schedulers": Key(SCHEDULERS, "empty where no scheduler logged how full it was"),
    "over_time": Key(SERVERS_OVER_TIME, optional=True),
    "idle": Key(IDLE, optional=True),
    "gpus": Key(_GPUS, "with --idle: null without gauges of GPUs", optional=True),
}


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
    parser.add_argument(
        "--idle", action="store_true", help="also when servers had no call in training steps, and why"
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
    from sglang_instrument.analysis.answers.routing.idle import gpu_shares, idle_table, idle_words
    from sglang_instrument.analysis.answers.routing.load import (
        balance,
        load_by_slice,
        load_over_time,
        server_table,
    )
    from sglang_instrument.analysis.answers.routing.samples import server_samples
    from sglang_instrument.analysis.answers.routing.schedulers import scheduler_rows
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
        balanced, conversations = balance(table), affinity(followed_calls(calls))
        asked = args.over_time is not None
        over_time = load_over_time(calls, samples, args.over_time or None) if asked else None
        drawn = bars(load_by_slice(calls, _SLICES))
        idle, gpus = (idle_table(opened), gpu_shares(opened)) if args.idle else (None, None)
        schedulers = scheduler_rows(opened, select.chosen(args, steps), _SLICES)
    unknown = unknown_words(table)
    rows = [{**row, "over_time": drawn.get(row["server"], "")} for row in table.to_dicts()]
    if args.json:
        answer: dict[str, Any] = {
            "servers": SERVERS.in_json(rows),
            "balance": balanced,
            "affinity": conversations,
            "unknown": unknown,
            "schedulers": SCHEDULERS.in_json(schedulers),
        }
        if idle is not None:
            answer["idle"], answer["gpus"] = IDLE.in_json(idle.to_dicts()), gpus
        if over_time is not None:
            answer["over_time"] = SERVERS_OVER_TIME.in_json(over_time.to_dicts())
        print_json({"folder": str(opened.folder), **answer})
        return 0
    where = select.named(steps, validate=args.validate)
    many = f"{balanced['servers']} server{'' if balanced['servers'] == 1 else 's'}"
    if calls.is_empty():
        print_line(f"{opened.name}{where}: no server is known")
    else:
        what = "engine calls" if opened.tells_requests else "times in which a slot of a decoder was busy"
        print_rows(SERVERS, rows, title=f"{opened.name}{where}: {many}, {len(calls):,} {what}")
    for line in filter(None, (balance_words(balanced), *affinity_words(conversations), *unknown)):
        print_line(line)
    if schedulers:
        print_rows(SCHEDULERS, schedulers, title="\nhow full the schedulers were, second by second")
    if over_time is not None and not calls.is_empty():
        print_rows(SERVERS_OVER_TIME, over_time.to_dicts(), title="\nover time")
    if idle is not None:
        if len(idle):
            print_rows(IDLE, _shown(idle.to_dicts()), title="\nwhat the time of the servers was spent on")
        for line in idle_words(idle, gpus):
            print_line(line)
    return 0


def _shown(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the parts of all servers together, and of each, where there are several, the large ones."""
    servers = {row["server"] for row in rows} - {None}
    return [
        row
        for row in rows
        if row["server"] is None or (1 < len(servers) <= _MOST_SERVERS and row["share"] >= _LEAST_SHARE)
    ]
