"""Show how many turns requests take, the time of each turn, and the time of the tools."""

from __future__ import annotations

import argparse
from typing import Final

from sglang_instrument.cli import select
from sglang_instrument.cli.columns import NOTHING, Column
from sglang_instrument.cli.commands import engine_logs
from sglang_instrument.cli.tables import print_json, print_line, print_table, reading

HELP: Final = """\
Show the turns of the requests: how many requests reach each turn, its time in the engine and in tools.

    sglang-instrument turns logs/gsm8k_600
    sglang-instrument turns logs/gsm8k_600 --step 67 --tools   # also each tool by name; reads all events

--json prints {"folder", "turns": [{"step", "validate", "turn", "requests", "engine_sec", "tool_sec",
"interaction_sec", "engine_p50_sec", "engine_p99_sec", "response_tokens", "prompt_tokens", "cached_tokens"}],
"counts": [{"turns", "requests", "mean_sec", "share"}]} and, with --tools, "tools": [{"event", "tool",
"count", "total_sec", "p50_sec", "p99_sec", "max_sec"}]. Turns count from 0 in JSON and from 1 in the
table. Where only the engine's processes logged, all of its calls are one row without a number."""

_TURNS: Final = (
    Column("turn", "the first, second ... reply of a request"),
    Column("requests", "how many requests reach this turn", "count"),
    Column("engine", "time of all its engine calls", "time"),
    Column("p50", "half of these calls took at most this long", "time", gives_way=1),
    Column("p99", "99 % of these calls took at most this long", "time", gives_way=2),
    Column("tool", "time of the tools and interactions that its replies asked for", "time"),
    Column("tokens", "tokens of its replies", "count"),
    Column("cached", "share of the prompts' tokens that the engine had in its cache", "share"),
    Column("ended", "share of all requests that ended with this turn", "share"),
)
_TOOLS: Final = (
    Column("tool", "the event, and the name of the tool"),
    Column("count", "how many calls", "count"),
    Column("total", "time of all calls; nested and concurrent ones count again", "time"),
    Column("p50", "half of the calls took at most this long", "fine time"),
    Column("p99", "99 % of the calls took at most this long", "fine time"),
    Column("max", "the longest call", "fine time"),
)
TABLES: Final = {"turns": _TURNS, "--tools: tools and interactions": _TOOLS}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `turns`."""
    select.add_arguments(parser)
    parser.add_argument("--worker", type=int, metavar="R", help="only this worker")
    parser.add_argument("--tools", action="store_true", help="also tools and interactions by name")


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
            turn_table(chosen, by_step=True), cached_by_turn(calls, by_step=True)
        ).to_dicts()
        turns = with_cached(turn_table(chosen), cached_by_turn(calls)).to_dicts()
        counts = turn_counts(chosen).to_dicts()
        alone = are_servers_alone(opened)
        if alone:
            by_step = turns = [calls_as_turn(opened)]
        tools = []
        if args.tools:
            select.tell_pruned(opened, steps)
            tools = tool_table(opened.read_spans(steps, args.worker, args.validate)).to_dicts()
    if args.json:
        told = {"tools": tools} if args.tools else {}
        print_json({"folder": str(opened.folder), "turns": by_step, "counts": counts, **told})
        return 0
    took = {row["turns"]: row for row in counts}
    rows = [
        (
            None if row["turn"] is None else str(row["turn"] + 1),
            *(row[name] for name in ("requests", "engine_sec", "engine_p50_sec", "engine_p99_sec")),
            None if alone else row["tool_sec"] + row["interaction_sec"],
            row["response_tokens"],
            row["cached_tokens"] / row["prompt_tokens"] if row["prompt_tokens"] else None,
            took[row["turn"] + 1]["share"] if not alone and row["turn"] + 1 in took else None,
        )
        for row in turns
    ]
    where = select.named(steps, validate=args.validate)
    print_table(_TURNS, rows, title=f"{opened.name}{where}: turns")
    if alone:
        print_line(f"{engine_logs.ALONE}; each call of the engine counts here, its turn as {NOTHING}")
    for line in no_cache_words(turns):
        print_line(line)
    if args.tools:
        named = [
            (
                row["event"] + (f" {row['tool']}" if row["tool"] else ""),
                row["count"],
                *(row[f"{name}_sec"] for name in ("total", "p50", "p99", "max")),
            )
            for row in tools
        ]
        print_table(_TOOLS, named, title="\ntools, interactions")
    return 0
