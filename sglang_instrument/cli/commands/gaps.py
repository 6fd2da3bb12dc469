"""Show plateaus, in which no request ended, and code that blocked the event loop."""

from __future__ import annotations

import argparse
from typing import Final

from sglang_instrument.analysis.tables.rollout.gaps import IN_FLIGHT, LOOP_BLOCKS, PLATEAUS
from sglang_instrument.cli import select
from sglang_instrument.cli.answer import FOLDER, Key
from sglang_instrument.cli.plain import say
from sglang_instrument.cli.tables import print_json, print_line, print_rows, reading

HELP: Final = """\
Show plateaus, in which a worker had requests in flight and none ended, and blocked event loops.

    sglang-instrument gaps logs/gsm8k_600
    sglang-instrument gaps logs/gsm8k_600 --step 67 --curve    # requests in flight over time

    plateau            since s   to s  stuck requests  turn  event
    step 67, worker 0     19.1  165.4  109 of 2,560       3  turn_engine_call

A plateau is longer than max(2 s, 10 x the 99th percentile of the gaps between completions), with at least
5 requests in flight. Seconds count from the start of the worker's first request."""

_SHOWN: Final = 12
_BARS: Final = 60
_LEVELS: Final = " .:-=+*#%@"
TABLES: Final = (PLATEAUS, LOOP_BLOCKS, IN_FLIGHT)
ANSWER: Final = {
    "folder": FOLDER,
    "plateaus": Key(PLATEAUS),
    "blocks": Key(LOOP_BLOCKS),
    "curve": Key(IN_FLIGHT, optional=True),
}


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
        rows = select.of_steps(opened, plateaus(opened.digest), args).to_dicts()
        rows = [{**row, **standstill(opened.digest, row)} for row in rows]
        blocks = select.of_steps(opened, loop_blocks(opened.files), args).to_dicts()
        curve = select.of_steps(opened, concurrency(opened.digest), args) if args.curve else None
    if args.json:
        more = {} if curve is None else {"curve": IN_FLIGHT.in_json(curve.to_dicts())}
        answer = {"plateaus": PLATEAUS.in_json(rows), "blocks": LOOP_BLOCKS.in_json(blocks), **more}
        print_json({"folder": str(opened.folder), **answer})
        return 0
    if rows:
        print_rows(PLATEAUS, rows[:_SHOWN], title=f"{opened.name}: plateaus ({len(rows)})")
    else:
        print_line(f"{opened.name}: no plateau")
    if blocks:
        times = "once" if len(blocks) == 1 else f"{len(blocks):,} times"
        print_rows(LOOP_BLOCKS, blocks[:_SHOWN], title=f"\nthe event loop was blocked {times}")
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
