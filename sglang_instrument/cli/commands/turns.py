"""Show how many turns requests take, the time of each turn, and the time of the tools."""

from __future__ import annotations

import argparse
from typing import Final

from sglang_instrument.analysis.tables.rollout.tools import TOOLS
from sglang_instrument.analysis.tables.rollout.turns import TURN_COUNTS, TURNS_BY_NUMBER
from sglang_instrument.cli import select
from sglang_instrument.cli.answer import FOLDER, Key
from sglang_instrument.cli.columns import NOTHING
from sglang_instrument.cli.commands import engine_logs
from sglang_instrument.cli.commands.unbound import print_unbound
from sglang_instrument.cli.tables import print_json, print_line, print_rows, reading

HELP: Final = """\
Show the turns of the requests: how many requests reach each turn, its time in the engine and in tools.

    sglang-instrument turns logs/gsm8k_600
    sglang-instrument turns logs/gsm8k_600 --step 67 --tools   # also tools, rewards by name; reads all events

    turn  requests  engine s  engine p50 s  engine p99 s  tool s  response tokens  cached %  ended %
    1          640     2,214          2.91          8.40   190.2           97,280         0       12
    2          563     1,730          2.60          7.95   171.6           81,040        71       43

Turns count from 1 in the table and from 0 in JSON, which has a row for each step and turn."""

TABLES: Final = (TURNS_BY_NUMBER, TOOLS, TURN_COUNTS)
ANSWER: Final = {
    "folder": FOLDER,
    "turns": Key(TURNS_BY_NUMBER),
    "counts": Key(TURN_COUNTS),
    "tools": Key(TOOLS, optional=True),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `turns`."""
    select.add_arguments(parser)
    parser.add_argument("--worker", type=int, metavar="R", help="only this worker")
    parser.add_argument("--tools", action="store_true", help="also tools, interactions and rewards by name")


def run(args: argparse.Namespace) -> int:
    """Print the turns, how many requests took each number of turns, and with --tools the tools."""
    from sglang_instrument.analysis.answers.routing.conversations import cached_by_turn, with_cached
    from sglang_instrument.analysis.answers.routing.server_calls import server_calls
    from sglang_instrument.analysis.answers.routing.words import no_cache_words
    from sglang_instrument.analysis.answers.servers import are_servers_alone, calls_as_turn
    from sglang_instrument.analysis.answers.turns import tool_table, turn_counts, turn_table

    with reading() as progress:
        opened = select.open_logs(args, args.logs, progress)
        steps = select.steps_of(opened, args)
        chosen = opened.digest.filter(select.chosen(args, steps))
        calls = server_calls(opened).filter(select.chosen(args, steps))
        by_step = with_cached(
            turn_table(chosen, by_step=True, whole=opened.digest), cached_by_turn(calls, by_step=True)
        ).to_dicts()
        turns = with_cached(turn_table(chosen, whole=opened.digest), cached_by_turn(calls)).to_dicts()
        counts = turn_counts(chosen).to_dicts()
        alone = are_servers_alone(opened)
        if alone:
            by_step = turns = [calls_as_turn(opened)]
        tools = []
        if args.tools:
            select.tell_pruned(opened, steps)
            tools = tool_table(opened.read_spans(steps, args.worker, args.validate)).to_dicts()
    if args.json:
        named = {"tools": TOOLS.in_json(tools)} if args.tools else {}
        counted = {"turns": TURNS_BY_NUMBER.in_json(by_step), "counts": TURN_COUNTS.in_json(counts)}
        print_json({"folder": str(opened.folder), **counted, **named})
        return 0
    shares = {} if alone else {row["turns"]: row["share"] for row in counts}
    where = select.named(steps, validate=args.validate)
    print_rows(
        TURNS_BY_NUMBER,
        turns,
        title=f"{opened.name}{where}: turns",
        cells={"ended_share": lambda row: None if alone else shares.get(row["turn"] + 1)},
    )
    if alone:
        print_line(f"{engine_logs.ALONE}; each call of the engine counts here, its turn as {NOTHING}")
    for line in no_cache_words(turns):
        print_line(line)
    if args.tools:
        print_rows(TOOLS, tools, title="\ntools, interactions, rewards")
    print_unbound(opened)
    return 0
