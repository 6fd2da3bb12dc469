"""Show which workers the others waited for at the barriers, and why the last one came last."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from sglang_instrument.analysis.tables.rollout.barriers import BARRIERS, WAITS
from sglang_instrument.analysis.tables.rollout.clocks import CLOCKS, ROUND_TRIPS
from sglang_instrument.cli import select
from sglang_instrument.cli.answer import FOLDER, Key
from sglang_instrument.cli.numbers import duration
from sglang_instrument.cli.tables import print_json, print_line, print_rows, reading

if TYPE_CHECKING:
    from sglang_instrument.analysis.answers.workers import Chain, Link

HELP: Final = """\
Show which workers the others waited for, over the run or at the barriers of one step.

    sglang-instrument workers logs/gsm8k_600
    sglang-instrument workers logs/gsm8k_600 --step 67      # arrivals, and why the last one came last

    worker  barrier  arrival s  wait s  caused wait s  possible saving s
    1             1       0.00    2.63           0.00               0.00
    0             1       2.62   <0.01           2.62               2.62
    worker 0 came last, 2.62 s after the one before it: tool 4.11 s (others 0.355 s) -> barrier 1

The last line walks along the ledger of the worker that came last: what it spent its time on before the
barrier, in the order of time, and what the other workers spent on the same (their median)."""

TABLES: Final = (WAITS, BARRIERS, CLOCKS, ROUND_TRIPS)
_LINK: Final = {
    "part": Key("string", "the part of the ledger"),
    "event": Key("string", "the event that took longest in it"),
    "sec": Key("number", "its seconds of this part"),
    "others_sec": Key(
        "number", "the median of the other workers' seconds of this part before the same barrier"
    ),
    "request_id": Key("string", "the request that took longest in it; null outside of requests"),
}
_CHAIN: Final = {
    "step": Key("integer", "the step"),
    "validate": Key("boolean", "whether it is validation"),
    "barrier": Key("integer", "which barrier of the step, from 0"),
    "worker": Key("integer", "the worker that came last, or the one that --worker asks for"),
    "late_sec": Key("number", "by how many seconds it came after the worker before it; 0 if it was not last"),
    "wait_sec": Key("number", "how long it waited"),
    "sec": Key("number", "its time since the step began or the barrier before was left"),
    "links": Key(_LINK, "what it spent this time on, in the order of time", is_list=True),
}
ANSWER: Final = {
    "folder": FOLDER,
    "workers": Key(WAITS),
    "barriers": Key(BARRIERS),
    "clocks": Key(CLOCKS),
    "round_trips": Key(ROUND_TRIPS),
    "chain": Key(_CHAIN, "with --step: why the last worker came last; null without evidence", optional=True),
}
_MOST_LINKS: Final = 5
_LEAST_LINK: Final = 0.02  # share of the time before the barrier from which on a part is named


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `workers`."""
    select.add_arguments(parser)
    parser.add_argument("--worker", type=int, metavar="R", help="with --step: walk along this one's ledger")


def run(args: argparse.Namespace) -> int:
    """Print the workers, or the barriers of a step."""
    import polars as pl

    from sglang_instrument.analysis.answers.engine.call_times import paths_of
    from sglang_instrument.analysis.answers.engine.round_trips import process_clocks, round_trip_table
    from sglang_instrument.analysis.answers.workers import barrier_table, blame_table, chain_of
    from sglang_instrument.analysis.run.clocks import clock_table
    from sglang_instrument.cli.commands.clocks import print_clocks

    with reading() as progress:
        opened = select.open_logs(args, args.logs, progress)
        steps = select.steps_of(opened, args)
        one_step = steps[0] if steps and len(steps) == 1 else None
        digest = opened.digest.filter(pl.col("validate") == args.validate)
        clocks = clock_table(digest).to_dicts()
        barriers = barrier_table(digest).filter(select.within(steps)).to_dicts()
        waits = blame_table(digest.filter(select.within(steps))).to_dicts()
        pairs = round_trip_table(opened)
        processes = process_clocks(opened, pairs)
        chain = None
        if one_step is not None:
            chain = chain_of(paths_of(opened), one_step, args.validate, args.worker)
    if args.json:
        answer = {"folder": str(opened.folder), "workers": WAITS.in_json(waits)}
        answer |= {"barriers": BARRIERS.in_json(barriers), "clocks": CLOCKS.in_json(clocks)}
        answer |= {"round_trips": ROUND_TRIPS.in_json(pairs.to_dicts())}
        chain_json = {} if one_step is None else {"chain": None if chain is None else asdict(chain)}
        print_json({**answer, **chain_json})
    elif one_step is None:
        _print_workers(f"{opened.name}{select.named(steps, validate=args.validate)}", waits, clocks)
        _print_doubts(barriers)
        print_clocks(pairs, processes)
    else:
        title = f"{opened.name}{select.named(steps, validate=args.validate)}"
        print_rows(BARRIERS, barriers, title=f"{title}: in the order of arrival")
        _print_doubts(barriers)
        print_line(_sentence(chain))
    return 0


def _print_workers(folder: str, waits: list[dict[str, Any]], clocks: list[dict[str, Any]]) -> None:
    offsets = {row["worker"]: row for row in clocks}
    shown = {"clock": lambda row: _clock(offsets.get(row["worker"]))}
    print_rows(WAITS, waits, title=f"{folder}: who waited for whom", cells=shown)
    if not waits:
        print_line("not enough evidence: no barrier was left by several workers together")


def _clock(row: dict[str, Any] | None) -> str | None:
    return None if row is None else f"{row['offset_sec']:+.3f} +- {row['residual_sec']:.3f}"


def _print_doubts(barriers: list[dict[str, Any]]) -> None:
    doubts: dict[str, set[tuple[int, int]]] = {}
    for row in barriers:
        if row["doubt"]:
            doubts.setdefault(row["doubt"], set()).add((row["step"], row["barrier"]))
    for doubt, where in doubts.items():
        steps = ", ".join(str(step) for step, _ in sorted(where)[:8])
        print_line(f"not enough evidence at {len(where)} barriers (steps {steps}): {doubt}")


def _sentence(chain: Chain | None) -> str:
    """Return what the last worker spent its time on, in the order of time; short parts are summed up."""
    if chain is None:
        return "the evidence blames no worker"
    longest = sorted(chain.links, key=lambda link: link.sec, reverse=True)[:_MOST_LINKS]
    longest = [link for link in longest if link.sec >= _LEAST_LINK * chain.sec]
    named = [_link(link) for link in chain.links if link in longest]
    rest = chain.sec - sum(link.sec for link in longest)
    text = f"worker {chain.worker} waited {duration(chain.wait_sec)}; it came after "
    if chain.late_sec:
        text = f"worker {chain.worker} came last, {duration(chain.late_sec)} after the one before it: "
    text += " -> ".join([*named, f"barrier {chain.barrier + 1}"])
    return text + (f"; the rest took {duration(rest)}" if rest >= _LEAST_LINK * chain.sec else "")


def _link(link: Link) -> str:
    from sglang_instrument.analysis.ledger.piece_cuts import IN_ENGINE

    asked = "" if link.request_id is None else f", most in request {link.request_id}"
    where = f" (most in {link.event})" if link.event in IN_ENGINE else ""
    return f"{link.part}{where} {duration(link.sec)} (others {duration(link.others_sec)}{asked})"
