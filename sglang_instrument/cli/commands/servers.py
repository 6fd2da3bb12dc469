"""Show by server, and over time: load, tokens, queue, cache, and whether conversations stay."""

from __future__ import annotations

import argparse
from typing import Final

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

    server    calls  conversations  moved here  mean in flight  p99 s  queue %  cached %  retractions
    server_0    170             89          62            5.77   2.36        0        48            0
    server_1    170             87          65            5.88   2.79        0        49            0

What is not known is null in JSON, and - in the table."""

_SLICES: Final = 16  # of the column `over time`
TABLES: Final = (SERVERS, SERVERS_OVER_TIME, SCHEDULERS)
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
ANSWER: Final = {
    "folder": FOLDER,
    "servers": Key(SERVERS),
    "balance": Key(_BALANCE, "how evenly the servers share the work"),
    "affinity": Key(_AFFINITY, "whether conversations stay where their cache is"),
    "unknown": MISSING,
    "schedulers": Key(SCHEDULERS, "empty where no scheduler logged how full it was"),
    "over_time": Key(SERVERS_OVER_TIME, optional=True),
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
        schedulers = scheduler_rows(opened, select.chosen(args, steps), _SLICES)
    unknown = unknown_words(table)
    rows = [{**row, "over_time": drawn.get(row["server"], "")} for row in table.to_dicts()]
    if args.json:
        answer = {
            "servers": SERVERS.in_json(rows),
            "balance": balanced,
            "affinity": conversations,
            "unknown": unknown,
            "schedulers": SCHEDULERS.in_json(schedulers),
        }
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
    return 0
