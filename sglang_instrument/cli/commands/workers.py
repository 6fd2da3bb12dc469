"""Show which workers the others waited for at the barriers, and why the last one came last."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from sglang_instrument.cli import select
from sglang_instrument.cli.numbers import NOTHING, count, seconds
from sglang_instrument.cli.tables import print_json, print_line, print_table, reading

if TYPE_CHECKING:
    from sglang_instrument.analysis.answers.workers import Chain, Link

HELP: Final = """\
Show which workers the others waited for, over the run or at the barriers of one step.

    sglang-instrument workers logs/gsm8k_600
    sglang-instrument workers logs/gsm8k_600 --step 67      # arrivals, and why the last one came last

The last line walks along the ledger of the worker that came last: what it spent its time on before the
barrier, in the order of time, and what the other workers spent on the same (their median).

arrival s   arrival at the barrier, after the first worker's        wait s   waiting at the barrier
blame s     its share of the waiting: each instant is split equally among the workers that are still missing
alone s     time saved if only this worker were as fast as the next slowest
clock s     by how much its clock is ahead of the median worker's, +- the residual; clocks of the engine's
            processes follow below

--json prints {"folder", "workers": [{"worker", "barriers", "last", "wait_sec", "blame_sec",
"gain_alone_sec"}], "barriers": [{"step", "validate", "barrier", "worker", "arrival_sec", "wait_sec",
"blame_sec", "gain_alone_sec", "doubt"}], "clocks": [{"worker", "barriers", "offset_sec", "residual_sec"}],
"round_trips": [{"client", "server", "calls", "low_sec", "high_sec", "offset_sec", "residual_sec",
"same_clock"}]} and, with --step, "chain": {"step", "validate", "barrier", "worker", "late_sec", "wait_sec",
"sec", "links": [{"part", "event", "sec", "others_sec", "request_id"}]}. "doubt" tells why a barrier is not
enough evidence; barriers count from 0."""

_MOST_LINKS: Final = 5
_LEAST_LINK: Final = 0.02  # share of the time before the barrier from which on a part is named


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `workers`."""
    select.add_arguments(parser)
    parser.add_argument("--worker", type=int, metavar="R", help="with --step: walk along this one's ledger")


def run(args: argparse.Namespace) -> int:
    """Print the workers, or the barriers of a step."""
    import polars as pl

    from sglang_instrument.analysis.answers.call_times import paths_of
    from sglang_instrument.analysis.answers.round_trips import process_clocks, round_trip_table
    from sglang_instrument.analysis.answers.workers import barrier_table, blame_table, chain_of
    from sglang_instrument.analysis.run.clocks import clock_table
    from sglang_instrument.analysis.run.opening import open_run
    from sglang_instrument.cli.commands.clocks import print_clocks

    with reading() as progress:
        opened = open_run(args.logs, progress)
        select.demand(opened, args)
        digest = opened.digest.filter(pl.col("validate") == args.validate)
        of_step = pl.lit(True) if args.step is None else pl.col("step") == args.step
        barriers = barrier_table(digest).filter(of_step).to_dicts()
        blame, clocks = blame_table(digest).to_dicts(), clock_table(digest).to_dicts()
        pairs = round_trip_table(opened)
        processes = process_clocks(opened, pairs)
        chain = None
        if args.step is not None:
            chain = chain_of(paths_of(opened), args.step, args.validate, args.worker)
    answer = {"folder": str(opened.folder), "workers": blame, "barriers": barriers, "clocks": clocks}
    answer["round_trips"] = pairs.to_dicts()
    if args.json:
        told = {} if args.step is None else {"chain": None if chain is None else asdict(chain)}
        print_json({**answer, **told})
    elif args.step is None:
        _print_workers(opened.name, blame, clocks)
        _print_doubts(barriers)
        print_clocks(pairs, processes)
    else:
        _print_barriers(f"{opened.name}, step {args.step}", barriers)
        _print_doubts(barriers)
        print_line(_sentence(chain))
    return 0


def _print_workers(folder: str, blame: list[dict[str, Any]], clocks: list[dict[str, Any]]) -> None:
    offsets = {row["worker"]: row for row in clocks}
    rows = [
        (
            str(row["worker"]),
            count(row["barriers"]),
            count(row["last"]),
            seconds(row["wait_sec"]),
            seconds(row["blame_sec"]),
            seconds(row["gain_alone_sec"]),
            _clock(offsets.get(row["worker"])),
        )
        for row in blame
    ]
    columns = ("worker", "barriers", "last", "wait s", "blame s", "alone s", "clock s")
    print_table(columns, rows, title=f"{folder}: who waited for whom")
    if not rows:
        print_line("not enough evidence: no barrier was left by several workers together")


def _clock(row: dict[str, Any] | None) -> str:
    return NOTHING if row is None else f"{row['offset_sec']:+.3f} +- {row['residual_sec']:.3f}"


def _print_barriers(title: str, barriers: list[dict[str, Any]]) -> None:
    rows = [
        (
            str(row["worker"]),
            str(row["barrier"] + 1),
            seconds(row["arrival_sec"]),
            seconds(row["wait_sec"]),
            seconds(row["blame_sec"]),
            seconds(row["gain_alone_sec"]),
        )
        for row in barriers
    ]
    columns = ("worker", "barrier", "arrival s", "wait s", "blame s", "alone s")
    print_table(columns, rows, title=f"{title}: in the order of arrival")


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
    told = sorted(chain.links, key=lambda link: link.sec, reverse=True)[:_MOST_LINKS]
    told = [link for link in told if link.sec >= _LEAST_LINK * chain.sec]
    named = [_link(link) for link in chain.links if link in told]
    rest = chain.sec - sum(link.sec for link in told)
    text = f"worker {chain.worker} waited {seconds(chain.wait_sec)} s; it came after "
    if chain.late_sec:
        text = f"worker {chain.worker} came last, {seconds(chain.late_sec)} s after the one before it: "
    text += " -> ".join([*named, f"barrier {chain.barrier + 1}"])
    return text + (f"; the rest took {seconds(rest)} s" if rest >= _LEAST_LINK * chain.sec else "")


def _link(link: Link) -> str:
    from sglang_instrument.analysis.ledger.deciding_paths import IN_ENGINE

    asked = "" if link.request_id is None else f", most in request {link.request_id}"
    where = f" (most in {link.event})" if link.event in IN_ENGINE else ""
    return f"{link.part}{where} {seconds(link.sec)} s (others {seconds(link.others_sec)} s{asked})"
