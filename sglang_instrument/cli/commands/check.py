"""Check whether a run's log is whole, and show what was running where it is not."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from sglang_instrument.analysis.tables.rollout.clocks import CLOCKS, ROUND_TRIPS
from sglang_instrument.analysis.tables.run.log_state import DEATHS, SIGHTINGS, UNENDED
from sglang_instrument.cli import select
from sglang_instrument.cli.answer import FOLDER, Key
from sglang_instrument.cli.log_state import HEALTH
from sglang_instrument.cli.numbers import count, duration
from sglang_instrument.cli.tables import print_json, print_line, reading

HELP: Final = """\
Check a run's log: records that were dropped, torn or sampled out, files that are missing, empty or of a newer
version, spans that never ended, workers that wrote nothing or died, clocks that differ. Exit code 1 if
something is wrong. A process that did not close its log is listed, but is no error: Ray kills its actors.

    sglang-instrument check logs/gsm8k_600

Use it after a run, or on a run that hangs. For patches and notices of each process: `status`. When no file
appears at all: `doctor`.

    gsm8k_600: 1,204,331 records in 96 files: 1 file not closed, 2 open spans
    step_67/worker_3.jsonl: tool_execution of request 67-3-0114, turn 2 was open for 412 s, at tools.py:88
    something is wrong"""

TABLES: Final = (UNENDED, DEATHS, SIGHTINGS, CLOCKS, ROUND_TRIPS)
ANSWER: Final = {
    "folder": FOLDER,
    "ok": Key("boolean", "whether nothing is wrong"),
    "health": Key(HEALTH, "what the reader read and what it left out"),
    "open": Key(UNENDED),
    "clocks": Key(CLOCKS),
    "round_trips": Key(ROUND_TRIPS),
    "without_records": Key("array", "processes that are described and wrote no record, such as worker_3"),
    "seen": Key(SIGHTINGS),
    "deaths": Key(DEATHS),
    "unbound": Key("array", "what an own rollout did not bind, in words"),
}
_RESIDUAL_SEC: Final = 0.05  # above this, do not compare times of different hosts


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `check`."""
    parser.add_argument("logs", metavar="LOGS", type=Path, help=select.LOGS_HELP)
    parser.add_argument("--json", action="store_true", help="print JSON")
    select.add_ray(parser)


def run(args: argparse.Namespace) -> int:
    """Print what is wrong; return 1 if anything is."""
    from sglang_instrument.analysis.answers.engine.round_trips import process_clocks, round_trip_table
    from sglang_instrument.analysis.answers.unbound_calls import unbound_calls
    from sglang_instrument.analysis.answers.unfinished import (
        sightings,
        unended_spans,
        workers_without_records,
    )
    from sglang_instrument.analysis.run.clocks import clock_table
    from sglang_instrument.analysis.verdict.verdict import findings_of
    from sglang_instrument.cli.commands.clocks import print_clocks

    with reading() as progress:
        opened = select.open_logs(args, args.logs, progress)
        clocks = clock_table(opened.digest).to_dicts()
        pairs = round_trip_table(opened)
        processes = process_clocks(opened, pairs)
        findings = findings_of(opened)
        unbound = unbound_calls(opened)
    deaths = [finding for finding in findings if finding.cause == "death"]
    health, still_open = opened.health, unended_spans(opened)
    without_records = workers_without_records(opened)
    unclosed = {(step, worker) for step, _, worker in health.unclosed}
    seen = [sighting for sighting in sightings(opened) if (sighting["step"], sighting["worker"]) in unclosed]
    files = (health.unreadable, health.missing, health.empty, health.newer)
    wrong = health.torn + health.foreign + health.dropped + sum(health.unfit.values())
    wrong += unbound.without_request + (unbound.shared_id is not None)
    wrong += sum(map(len, (*files, health.unclosed, still_open, without_records, deaths, seen)))
    if args.json:
        print_json(
            {
                "folder": str(opened.folder),
                "ok": not wrong,
                "health": asdict(health),
                "open": UNENDED.in_json(still_open),
                "clocks": CLOCKS.in_json(clocks),
                "round_trips": ROUND_TRIPS.in_json(pairs.to_dicts()),
                "without_records": without_records,
                "seen": SIGHTINGS.in_json(seen),
                "deaths": DEATHS.in_json(map(asdict, deaths)),
                "unbound": unbound.sentences,
            }
        )
        return int(wrong > 0)
    print_line(f"{opened.name}: {health.sentence()}")
    for span in still_open:
        print_line(_describe(span))
    for death in deaths:
        print_line(death.sentence)
    for sighting in seen:
        silent = duration((sighting["seen_us"] - sighting["since_us"]) / 1e6)
        print_line(f"a follower saw in step {sighting['step']}, silent for {silent}: {sighting['sentence']}")
    for process in without_records:
        print_line(f"{process} wrote no record, though processes/{process}.json exists")
    for row in clocks:
        if abs(row["offset_sec"]) > _RESIDUAL_SEC or row["residual_sec"] > _RESIDUAL_SEC:
            print_line(
                f"the clock of worker {row['worker']} differs from the median by {row['offset_sec']:+.3f} s "
                f"+- {row['residual_sec']:.3f} s, by {count(row['barriers'])} barriers"
            )
    print_clocks(pairs, processes)
    for sentence in unbound.sentences:
        print_line(sentence)
    print_line("something is wrong" if wrong else "nothing is wrong", "bold red" if wrong else "bold green")
    return int(wrong > 0)


def _describe(span: dict[str, Any]) -> str:
    from sglang_instrument.analysis.reading.last_open import place_of, spoken

    turn = "" if span["turn"] is None or span["request_id"] is None else f", turn {span['turn'] + 1}"
    place = place_of(span)
    where = "" if place is None else f", at {place}"
    killed = "" if span["pid"] is None else f" or longer when its process {span['pid']} ended"
    return f"{span['file']}: {spoken(span)}{turn} was open for {duration(span['age_sec'])}{killed}{where}"
