"""Show which workers the others waited for at the barriers, and why the last one came last."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, Final

from sglang_instrument.analysis.tables.column import Column
from sglang_instrument.cli import select
from sglang_instrument.cli.numbers import duration
from sglang_instrument.cli.tables import print_json, print_line, print_table, reading

if TYPE_CHECKING:
    from sglang_instrument.analysis.answers.workers import Chain, Link

HELP: Final = """\
Show which workers the others waited for, over the run or at the barriers of one step.

    sglang-instrument workers logs/gsm8k_600
    sglang-instrument workers logs/gsm8k_600 --step 67      # arrivals, and why the last one came last

The last line walks along the ledger of the worker that came last: what it spent its time on before the
barrier, in the order of time, and what the other workers spent on the same (their median).

--json prints {"folder", "workers": [{"worker", "barriers", "last", "wait_sec", "caused_wait_sec",
"possible_saving_sec"}], "barriers": [{"step", "validate", "barrier", "worker", "arrival_sec", "wait_sec",
"caused_wait_sec", "possible_saving_sec", "doubt"}], "clocks": [...],
"round_trips": [{"client", "server", "calls", "low_sec", "high_sec", "offset_sec", "residual_sec",
"same_clock"}]} and, with --step, "chain": {"step", "validate", "barrier", "worker", "late_sec", "wait_sec",
"sec", "links": [{"part", "event", "sec", "others_sec", "request_id"}]}. "doubt" tells why a barrier is not
enough evidence; barriers count from 0."""

_WAIT: Final = Column("wait", "its waiting at barriers", "time")
_BLAME: Final = Column(
    "blame",
    "its share of the waiting: each instant is split equally among the workers that are missing",
    "time",
)
_GAIN: Final = Column(
    "gain", "time saved if this worker alone were as fast as the next slowest", "time", gives_way=2
)
_WORKERS: Final = (
    Column("worker", "its rank"),
    Column("barriers", "how many it left together with others", "count"),
    Column("last", "how often it came last", "count"),
    *(_WAIT, _BLAME, _GAIN),
    Column(
        "clock s",
        "by how much its clock is ahead of the median worker's, +- the residual; clocks of the engine's "
        "processes follow below",
        gives_way=1,
    ),
)
_BARRIERS: Final = (
    Column("worker", "its rank"),
    Column("barrier", "the first, second ... of the step", "count"),
    Column("arrival", "after the first worker's", "time"),
    *(_WAIT, _BLAME, _GAIN),
)
TABLES: Final = {"workers": _WORKERS, "--step N: its barriers, in the order of arrival": _BARRIERS}
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
    from sglang_instrument.cli.commands.clocks import print_clocks

    with reading() as progress:
        opened = select.open_logs(args, args.logs, progress)
        steps = select.steps_of(opened, args)
        one_step = steps[0] if steps and len(steps) == 1 else None
        digest = opened.digest.filter(pl.col("validate") == args.validate)
        clocks = clock_table(digest).to_dicts()
        barriers = barrier_table(digest).filter(select.within(steps)).to_dicts()
        blame = blame_table(digest.filter(select.within(steps))).to_dicts()
        pairs = round_trip_table(opened)
        processes = process_clocks(opened, pairs)
        chain = None
        if one_step is not None:
            chain = chain_of(paths_of(opened), one_step, args.validate, args.worker)
    answer = {"folder": str(opened.folder), "workers": blame, "barriers": barriers, "clocks": clocks}
    answer["round_trips"] = pairs.to_dicts()
    if args.json:
        told = {} if one_step is None else {"chain": None if chain is None else asdict(chain)}
        print_json({**answer, **told})
    elif one_step is None:
        _print_workers(f"{opened.name}{select.named(steps, validate=args.validate)}", blame, clocks)
        _print_doubts(barriers)
        print_clocks(pairs, processes)
    else:
        _print_barriers(f"{opened.name}{select.named(steps, validate=args.validate)}", barriers)
        _print_doubts(barriers)
        print_line(_sentence(chain))
    return 0


def _print_workers(folder: str, blame: list[dict[str, Any]], clocks: list[dict[str, Any]]) -> None:
    offsets = {row["worker"]: row for row in clocks}
    rows = [
        (
            row["worker"],
            *(
                row[name]
                for name in ("barriers", "last", "wait_sec", "caused_wait_sec", "possible_saving_sec")
            ),
            _clock(offsets.get(row["worker"])),
        )
        for row in blame
    ]
    print_table(_WORKERS, rows, title=f"{folder}: who waited for whom")
    if not rows:
        print_line("not enough evidence: no barrier was left by several workers together")


def _clock(row: dict[str, Any] | None) -> str | None:
    return None if row is None else f"{row['offset_sec']:+.3f} +- {row['residual_sec']:.3f}"


def _print_barriers(title: str, barriers: list[dict[str, Any]]) -> None:
    rows = [
        (
            row["worker"],
            row["barrier"] + 1,
            *(row[name] for name in ("arrival_sec", "wait_sec", "caused_wait_sec", "possible_saving_sec")),
        )
        for row in barriers
    ]
    print_table(_BARRIERS, rows, title=f"{title}: in the order of arrival")


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
    text = f"worker {chain.worker} waited {duration(chain.wait_sec)}; it came after "
    if chain.late_sec:
        text = f"worker {chain.worker} came last, {duration(chain.late_sec)} after the one before it: "
    text += " -> ".join([*named, f"barrier {chain.barrier + 1}"])
    return text + (f"; the rest took {duration(rest)}" if rest >= _LEAST_LINK * chain.sec else "")


def _link(link: Link) -> str:
    from sglang_instrument.analysis.ledger.deciding_paths import IN_ENGINE

    asked = "" if link.request_id is None else f", most in request {link.request_id}"
    where = f" (most in {link.event})" if link.event in IN_ENGINE else ""
    return f"{link.part}{where} {duration(link.sec)} (others {duration(link.others_sec)}{asked})"
