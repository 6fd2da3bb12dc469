"""Plateaus, in which no request ended, and blocked event loops."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from sglang_instrument.analysis.tables.column import Column
from sglang_instrument.analysis.tables.shared import VALIDATE
from sglang_instrument.analysis.tables.table import Table

if TYPE_CHECKING:
    import polars as pl

    from sglang_instrument.analysis.run.opening import Run


def _blocks(run: Run) -> pl.DataFrame:
    from sglang_instrument.analysis.answers.gaps import loop_blocks

    return loop_blocks(run.files)


def _curve(run: Run) -> pl.DataFrame:
    from sglang_instrument.analysis.answers.gaps import concurrency

    return concurrency(run.digest)


def _place(row: Mapping[str, Any]) -> str:
    return f"step {row['step']}, worker {row['worker']}"


def _of_all(row: Mapping[str, Any]) -> str:
    return f"{row['stuck_requests']:,} of {row['requests']:,}"


def _process(row: Mapping[str, Any]) -> str:
    return f"{row['role']} {row['worker']}"


PLATEAUS: Final = Table(
    name="plateaus",
    row="a stretch of time in which a worker had requests in flight and none ended",
    commands=("gaps",),
    columns=(
        Column("plateau", "the step and the worker", cell=_place, json=False, frame=False),
        Column("step", "the training step", "id", terminal=False),
        VALIDATE,
        Column("worker", "its rank", "id", terminal=False),
        Column("from_sec", "the last end of a request before it", "time", terminal=False),
        Column(
            "since_sec",
            "when the last stuck request entered its stuck turn, after the worker's first request began",
            "time",
            former_title="from",
        ),
        Column("to_sec", "when a request ended again", "time"),
        Column(
            "stuck_requests",
            "how many were in flight throughout; a terminal adds how many requests the worker had",
            "count",
            cell=_of_all,
            formerly="stuck",
            former_title="requests",
        ),
        Column("requests", "all requests of the worker", "count", terminal=False),
        Column("from_us", "the same as from_sec", "moment", terminal=False),
        Column("to_us", "the same as to_sec", "moment", terminal=False),
        Column("turn", "the turn in which most of them were", "ordinal"),
        Column("in_turn", "how many of them were in it", "count", terminal=False),
        Column("event", "the event in which they were"),
        Column(
            "slowdown",
            "the engine's time per token in their turns, relative to that in all turns",
            "number",
            terminal=False,
        ),
    ),
)
LOOP_BLOCKS: Final = Table(
    name="loop_blocks",
    row="code that blocked an event loop, the longest first",
    commands=("gaps",),
    make=_blocks,
    columns=(
        Column("culprit", "the code that blocked the loop: file and line", former_title="by"),
        Column("in_span", "the span that was open", gives_way=1, former_title="in"),
        Column("step", "the training step", "id"),
        VALIDATE,
        Column("process", "role and rank", cell=_process, json=False, frame=False),
        Column("role", "of the process", terminal=False),
        Column("worker", "rank of the process", "id", terminal=False),
        Column("at_us", "when it began", "moment", terminal=False),
        Column("blocked_sec", "for how long nothing else ran", "time", former_title="time"),
        Column("cpu_sec", "the CPU time of the process meanwhile, of all its threads", "time", gives_way=2),
        Column("thread_cpu_sec", "the CPU time of the loop's own thread", "time", terminal=False),
    ),
)
IN_FLIGHT: Final = Table(
    name="in_flight",
    row="a time at which the number of requests in flight of a worker changed",
    commands=("gaps",),
    option="--curve",
    make=_curve,
    columns=(
        Column("step", "the training step", "id"),
        VALIDATE,
        Column("worker", "its rank", "id"),
        Column("at_sec", "after its first request began", "time"),
        Column("in_flight", "requests in flight from then on", "count"),
    ),
)
