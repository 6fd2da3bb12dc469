"""Print what SGLang's own processes logged about requests: queue, prefill, decode, retractions."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any, Final

from sglang_instrument.cli.numbers import NOTHING, count, percent, seconds
from sglang_instrument.cli.tables import print_json, print_line, print_table
from sglang_instrument.errors import LogError

if TYPE_CHECKING:
    from sglang_instrument.analysis.run.opening import Run

_KINDS: Final = ("queue", "prefill", "decode")
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
    if args.step is not None:
        requests = requests.filter(pl.col("step") == args.step, pl.col("validate") == args.validate)
    rows = requests.head(args.limit).to_dicts()
    if args.json:
        print_json({"folder": str(opened.folder), "engine_requests": rows})
        return 0
    title = f"{opened.name}: the slowest of {len(requests):,} requests of the engine"
    shown = [
        (
            row["rid"],
            count(row["step"]),
            row["scheduler"] or NOTHING,
            seconds(row["duration_sec"]),
            *(seconds(row[f"{kind}_sec"]) for kind in _KINDS),
            count(row["retractions"]),
            count(row["prompt_tokens"]),
            count(row["completion_tokens"]),
        )
        for row in rows
    ]
    columns = ("rid", "step", "scheduler", "time s", *(f"{kind} s" for kind in _KINDS))
    print_table(
        (*columns, "retracted", "prompt", "written"), shown, title=title, optional=("scheduler", "prompt")
    )
    print_line(told(engine_summary_of(requests)))
    return 0


def print_calls(calls: list[dict[str, Any]]) -> None:
    """Print the calls of one request."""
    shown = [
        (
            NOTHING if call["turn"] is None else str(call["turn"] + 1),
            call["scheduler"] or NOTHING,
            seconds(call["call_sec"]),
            *(seconds(call[f"{kind}_sec"]) for kind in (*_KINDS, "outside")),
            count(call["retractions"]),
            call["why"] or NOTHING,
        )
        for call in calls
    ]
    kinds = (f"{kind} s" for kind in (*_KINDS, "outside"))
    columns = ("turn", "scheduler", "time s", *kinds, "retracted", "why")
    title = "\nwhat SGLang's own processes logged for each call"
    print_table(columns, shown, title=title, optional=("scheduler", "outside s"))


def told(engine: dict[str, Any]) -> str:
    """Return a summary of the engine as a line for people."""
    if None in engine["shares"].values():
        return f"engine: {engine['requests']:,} requests, whose ends were not logged: {_UNKNOWN}"
    parts = ", ".join(f"{percent(share)} % {kind}" for kind, share in engine["shares"].items())
    of_what = f"the time of {engine['requests']:,} requests"
    line = f"engine: {parts} of {of_what}" if parts else f"engine: {engine['requests']:,} requests"
    return f"{line}; {engine['retractions']:,} retractions" if engine["retractions"] else line
