"""Print what SGLang's own processes logged about requests: queue, prefill, decode, retractions."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, Final

from sglang_instrument.cli import select
from sglang_instrument.cli.columns import NOTHING, Column
from sglang_instrument.cli.numbers import percent
from sglang_instrument.cli.tables import print_json, print_line, print_table
from sglang_instrument.errors import LogError

if TYPE_CHECKING:
    from sglang_instrument.analysis.run.opening import Run

_KINDS: Final = ("queue", "prefill", "decode")
REQUESTS: Final = (
    Column("rid", "the engine's id of the request"),
    Column("step", "the training step in whose time it began", "count", gives_way=3),
    Column("scheduler", "the process that ran it", gives_way=1),
    Column("time", "from its arrival to its end", "time"),
    Column("queue", "waiting for a place in the running batch", "time"),
    Column("prefill", "reading the prompt", "time"),
    Column("decode", "writing the reply", "time"),
    Column("retracted", "how often the engine took it out of its batch to free memory", "count", gives_way=4),
    Column("prompt", "tokens of the prompt", "count", gives_way=2),
    Column("written", "tokens of the reply", "count"),
)
CALLS: Final = (
    Column("turn", "the turn that called, from 1", "count"),
    Column("scheduler", "the process that ran the call", gives_way=1),
    Column("time", "of the call, as the caller measured it", "time"),
    Column("queue", "waiting for a place in the running batch", "time"),
    Column("prefill", "reading the prompt", "time"),
    Column("decode", "writing the reply", "time"),
    Column(
        "outside", "the rest of the call: tokenizers, transport, waiting for the caller's loop", "time", 2
    ),
    Column("retracted", "how often the engine took the call out of its batch to free memory", "count", 3),
    Column("why", "what made the call long"),
)
_UNKNOWN: Final = ", ".join(f"{NOTHING} {kind}" for kind in _KINDS)


def show_engine_requests(opened: Run, args: argparse.Namespace) -> int:
    """Print the requests of the engine, the slowest first, whichever process sent them.

    Raises:
        LogError: No process of the engine logged anything.
    """
    import polars as pl

    from sglang_instrument.analysis.answers.join import (
        engine_request_table,
        engine_summary_of,
        has_engine_logs,
    )

    if not has_engine_logs(opened):
        raise LogError(
            f"{opened.folder}: no engine/ folder; SGLang's processes log if SGLANG_INSTRUMENT=1 is in their "
            'environment and engine_detail is not "off"; `sglang-instrument status` lists the processes'
        )
    requests = engine_request_table(opened).sort("duration_sec", descending=True, nulls_last=True)
    if args.step:
        steps = select.steps_of(opened, args, opened.everything)
        requests = requests.filter(select.within(steps), pl.col("validate") == args.validate)
    rows = requests.head(args.limit).to_dicts()
    if args.json:
        print_json({"folder": str(opened.folder), "engine_requests": rows})
        return 0
    title = f"{opened.folder}: the slowest of {len(requests):,} requests of the engine"
    shown = [
        (
            row["rid"],
            row["step"],
            row["scheduler"],
            row["duration_sec"],
            *(row[f"{kind}_sec"] for kind in _KINDS),
            row["retractions"],
            row["prompt_tokens"],
            row["completion_tokens"],
        )
        for row in rows
    ]
    print_table(REQUESTS, shown, title=title)
    print_line(told(engine_summary_of(requests)))
    return 0


def print_calls(calls: list[dict[str, Any]]) -> None:
    """Print the calls of one request."""
    shown = [
        (
            None if call["turn"] is None else call["turn"] + 1,
            call["scheduler"],
            call["call_sec"],
            *(call[f"{kind}_sec"] for kind in (*_KINDS, "outside")),
            call["retractions"],
            call["why"] or None,
        )
        for call in calls
    ]
    print_table(CALLS, shown, title="\nwhat SGLang's own processes logged for each call")


def told(engine: dict[str, Any]) -> str:
    """Return a summary of the engine as a line for people."""
    if None in engine["shares"].values():
        return f"engine: {engine['requests']:,} requests, whose ends were not logged: {_UNKNOWN}"
    parts = ", ".join(f"{percent(share)} % {kind}" for kind, share in engine["shares"].items())
    of_what = f"the time of {engine['requests']:,} requests"
    line = f"engine: {parts} of {of_what}" if parts else f"engine: {engine['requests']:,} requests"
    return f"{line}; {engine['retractions']:,} retractions" if engine["retractions"] else line
