"""Show plateaus, in which no request ended, and code that blocked the event loop."""

from __future__ import annotations

import argparse
from typing import Final

from sglang_instrument.analysis.tables.column import Column
from sglang_instrument.cli import select
from sglang_instrument.cli.plain import say
from sglang_instrument.cli.tables import print_json, print_line, print_table, reading

HELP: Final = """\
Show plateaus, in which a worker had requests in flight and none ended, and blocked event loops.

    sglang-instrument gaps logs/gsm8k_600
    sglang-instrument gaps logs/gsm8k_600 --step 67 --curve    # requests in flight over time

A plateau is longer than max(2 s, 10 x the 99th percentile of the gaps between completions), with at least
5 requests in flight. Seconds count from the start of the worker's first request.

--json prints {"folder", "plateaus": [{"step", "validate", "worker", "from_sec", "to_sec", "stuck",
"requests", "from_us", "to_us", "turn", "in_turn", "event", "since_sec", "slowdown"}], "blocks": [{"role",
"step", "validate", "worker", "at_us", "blocked_sec", "still", "in_span", "culprit"}]} and, with --curve,
"curve": [{"step", "validate", "worker", "at_sec", "in_flight"}]. Turns count from 0; "stuck" requests were in
flight throughout; "slowdown" is the engine's time per token in their turns, relative to that in all turns."""

_SHOWN: Final = 12
_BARS: Final = 60
_LEVELS: Final = " .:-=+*#%@"
_PLATEAUS: Final = (
    Column("plateau", "the step and the worker"),
    Column("from", "when the last stuck request entered its stuck turn", "time"),
    Column("to", "when a request ended again", "time"),
    Column("requests", "how many were in flight throughout, of all requests of the worker"),
    Column("turn", "the turn in which most of them were, from 1", "count"),
    Column("event", "the event in which they were"),
)
_BLOCKS: Final = (
    Column("by", "the code that blocked the loop: file and line"),
    Column("in", "the span that was open", gives_way=1),
    Column("step", "its number", "count"),
    Column("process", "role and rank"),
    Column("time", "for how long nothing else ran, as far as it was logged", "time"),
    Column("", "whether the log shows no end"),
)
TABLES: Final = {"plateaus": _PLATEAUS, "blocked event loops": _BLOCKS}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `gaps`."""
    select.add_arguments(parser)
    parser.add_argument(
        "--curve", action="store_true", help="also print the requests in flight of each worker"
    )


def run(args: argparse.Namespace) -> int:
    """Print plateaus, blocked loops, and with --curve the requests in flight."""
    from sglang_instrument.analysis.answers.gaps import concurrency, loop_blocks, plateaus, standstill

    with reading() as progress:
        opened = select.open_logs(args, args.logs, progress)
        found = select.of_steps(opened, plateaus(opened.digest), args).to_dicts()
        found = [{**row, **standstill(opened.digest, row)} for row in found]
        blocks = select.of_steps(opened, loop_blocks(opened.files), args).to_dicts()
        curve = select.of_steps(opened, concurrency(opened.digest), args) if args.curve else None
    if args.json:
        told = {} if curve is None else {"curve": curve.to_dicts()}
        print_json({"folder": str(opened.folder), "plateaus": found, "blocks": blocks, **told})
        return 0
    rows = [
        (
            f"step {row['step']}, worker {row['worker']}",
            row["since_sec"],
            row["to_sec"],
            f"{row['stuck']:,} of {row['requests']:,}",
            None if row["turn"] is None else row["turn"] + 1,
            row["event"],
        )
        for row in found[:_SHOWN]
    ]
    if rows:
        print_table(_PLATEAUS, rows, title=f"{opened.name}: plateaus ({len(found)})")
    else:
        print_line(f"{opened.name}: no plateau")
    blocked = [
        (
            row["culprit"],
            row["in_span"],
            row["step"],
            f"{row['role']} {row['worker']}",
            row["blocked_sec"],
            "its end is not known" if row["still"] else "",
        )
        for row in blocks[:_SHOWN]
    ]
    if blocked:
        times = "once" if len(blocks) == 1 else f"{len(blocks):,} times"
        print_table(_BLOCKS, blocked, title=f"\nthe event loop was blocked {times}")
    else:
        print_line("no event loop was blocked for longer than 100 ms")
    if curve is not None:
        _print_curve(curve.to_dicts())
    return 0


def _print_curve(rows: list[dict[str, float]]) -> None:
    """Print one line per worker; a darker character means more requests in flight."""
    last = max((row["at_sec"] for row in rows), default=0.0) or 1.0
    most = max((row["in_flight"] for row in rows), default=1) or 1
    levels: dict[tuple[float, float], list[float]] = {}
    for row in rows:
        line = levels.setdefault((row["step"], row["worker"]), [0.0] * (_BARS + 1))
        begin = int(row["at_sec"] / last * _BARS)
        line[begin:] = [row["in_flight"]] * (_BARS + 1 - begin)
    print_line(f"requests in flight, from 0 to {last:.0f} s; {_LEVELS[-1]} is {most:,.0f}")
    for (step, worker), line in sorted(levels.items()):
        marks = "".join(_LEVELS[-(-int(value) * (len(_LEVELS) - 1) // int(most))] for value in line)
        say(f"step {step:.0f} worker {worker:<4.0f} |{marks}|")
