"""Show how many turns requests take, the time of each turn, and the time of the tools."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Final

from sglang_instrument.analysis.tables.column import Column
from sglang_instrument.analysis.tables.rollout.agents import AGENTS
from sglang_instrument.analysis.tables.rollout.tools import TOOLS
from sglang_instrument.analysis.tables.rollout.turns import TURN_COUNTS, TURN_DURATIONS, TURNS_BY_NUMBER
from sglang_instrument.analysis.tables.table import Row
from sglang_instrument.cli import select
from sglang_instrument.cli.answer import FOLDER, Key
from sglang_instrument.cli.columns import NOTHING
from sglang_instrument.cli.commands import engine_logs
from sglang_instrument.cli.commands.unbound import print_unbound, words_for_nothing
from sglang_instrument.cli.tables import print_json, print_line, print_rows, reading

HELP: Final = """\
Show the turns of the requests: how many requests reach each turn, its time in the engine and in tools.

    sglang-instrument turns logs/gsm8k_600
    sglang-instrument turns logs/gsm8k_600 --step 67 --tools   # also tools, rewards by name; reads all events
    sglang-instrument turns logs/gsm8k_600 --over-steps        # how long requests of 1, 2 ... turns took

    turn  requests  engine s  engine p50 s  engine p99 s  tool s  response tokens  cached %  ended %
    1          640     2,214          2.91          8.40   190.2           97,280         0       12
    2          563     1,730          2.60          7.95   171.6           81,040        71       43

    turns  requests  share %  mean s
    1            77     12.0    4.10
    2           203     31.7    9.35

Turns count from 1 in the table and from 0 in JSON, which has a row for each step and turn."""

TABLES: Final = (TURNS_BY_NUMBER, TURN_COUNTS, TURN_DURATIONS, TOOLS, AGENTS)
ANSWER: Final = {
    "folder": FOLDER,
    "turns": Key(TURNS_BY_NUMBER),
    "counts": Key(TURN_COUNTS),
    "durations": Key(TURN_DURATIONS, optional=True),
    "tools": Key(TOOLS, optional=True),
    "agents": Key(AGENTS, "empty where no agent is bound"),
}
_MOST_COLUMNS: Final = 8  # numbers of turns beside each other; requests with more share the last column


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `turns`."""
    select.add_arguments(parser)
    parser.add_argument("--worker", type=int, metavar="R", help="only this worker")
    parser.add_argument(
        "--over-steps", action="store_true", help="also the mean duration by number of turns, step by step"
    )
    parser.add_argument("--tools", action="store_true", help="also tools, interactions and rewards by name")


def run(args: argparse.Namespace) -> int:
    """Print the turns, how many requests took each number of turns, and with --tools the tools."""
    from sglang_instrument.analysis.answers.agents import agent_table
    from sglang_instrument.analysis.answers.routing.conversations import cached_by_turn, with_cached
    from sglang_instrument.analysis.answers.routing.server_calls import server_calls
    from sglang_instrument.analysis.answers.routing.words import no_cache_words
    from sglang_instrument.analysis.answers.servers import are_servers_alone, calls_as_turn
    from sglang_instrument.analysis.answers.turns import tool_table, turn_counts, turn_durations, turn_table

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
        agents = agent_table(chosen, calls).to_dicts()
        durations = turn_durations(chosen).to_dicts() if args.over_steps else []
        alone = are_servers_alone(opened)
        if alone:
            by_step = turns = [calls_as_turn(opened)]
        tools = []
        if args.tools:
            select.tell_pruned(opened, steps)
            tools = tool_table(opened.read_spans(steps, args.worker, args.validate)).to_dicts()
    if args.json:
        named = {"durations": TURN_DURATIONS.in_json(durations)} if args.over_steps else {}
        named |= {"tools": TOOLS.in_json(tools)} if args.tools else {}
        counted = {"turns": TURNS_BY_NUMBER.in_json(by_step), "counts": TURN_COUNTS.in_json(counts)}
        counted["agents"] = AGENTS.in_json(agents)
        print_json({"folder": str(opened.folder), **counted, **named})
        return 0
    shares = {} if alone else {row["turns"]: row["share"] for row in counts}
    where = select.named(steps, validate=args.validate)
    print_rows(
        TURNS_BY_NUMBER,
        turns,
        title=f"{opened.name}{where}: turns",
        cells={"ended_share": lambda row: None if alone else shares.get(row["turn"] + 1)},
        explained=not (counts or tools),
        nothing="" if turns else words_for_nothing(opened),
    )
    if alone:
        print_line(f"{engine_logs.ALONE}; each call of the engine counts here, its turn as {NOTHING}")
    for line in no_cache_words(turns):
        print_line(line)
    if counts:
        last = not (args.over_steps or args.tools or agents)
        print_rows(TURN_COUNTS, counts, title="\nrequests by their number of turns", explained=last)
    if args.over_steps:
        _print_durations(durations, explained=not (args.tools or agents))
    if args.tools:
        print_rows(TOOLS, tools, title="\ntools, interactions, rewards", explained=not agents)
    if agents:
        print_rows(AGENTS, agents, title="\nagents")
    print_unbound(opened)
    return 0


def _print_durations(durations: Sequence[Row], *, explained: bool) -> None:
    """Print a row for each step, and in it the mean duration of requests of 1, 2 ... turns."""
    steps: dict[int, dict[int, tuple[float, int]]] = {}
    for row in durations:
        turns = min(row["turns"], _MOST_COLUMNS)
        sum_sec, requests = steps.setdefault(row["step"], {}).get(turns, (0.0, 0))
        total = (sum_sec + row["mean_sec"] * row["requests"], requests + row["requests"])
        steps[row["step"]][turns] = total
    numbers = sorted({turns for means in steps.values() for turns in means})
    rows = [
        {"step": step, **{f"turns_{turns}": sum_sec / n for turns, (sum_sec, n) in means.items()}}
        for step, means in steps.items()
    ]
    columns = [
        Column(f"turns_{turns}", "mean duration of requests with so many turns", "time", title=_turns(turns))
        for turns in numbers
    ]
    title = "\nmean duration of requests by their number of turns"
    print_rows(TURN_DURATIONS, rows, title=title, more=columns, explained=explained)


def _turns(turns: int) -> str:
    more = " or more" if turns == _MOST_COLUMNS else ""
    return f"{turns}{more} turn{'s' if turns > 1 else ''}"
