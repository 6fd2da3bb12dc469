"""Truncate a run as if a worker was killed in the middle of a step, and the others later.

The files keep what the writer and its watchdog would have written until then: no spans that had not ended, no
closing records, and reports of the spans that had been open for 30 s, 60 s and so on.
"""

import json
from collections import defaultdict
from datetime import datetime, timedelta, timezone
from pathlib import Path
from shutil import rmtree
from typing import Any

from sglang_instrument.schema import CONTROL_EVENTS, LOG_OPENED, OPEN_SPANS, WATCHED_PHASES, kind_of

FIRST_AGE_US = 30_000_000
Record = dict[str, Any]


def kill_worker(folder: Path, step: int, worker: int, share: float, ahead_sec: float) -> None:
    """Kill a worker after this share of its way to the barrier, and the others `ahead_sec` later.

    Its engine dies with it; the trainer and the other engines die with the others. The run ends in that step;
    workers that had arrived at the barrier are still waiting in it.
    """
    for path in folder.glob("*_*"):
        kind, _, number = path.name.partition("_")
        if int(number) > step or (kind == "validate" and int(number) == step):
            rmtree(path)
    written = {path: _read(path) for path in sorted((folder / f"step_{step}").glob("worker_*.jsonl"))}
    of_dead = written[folder / f"step_{step}" / f"worker_{worker}.jsonl"]
    begin, arrival = min(record["start_us"] for record in of_dead if "start_us" in record), _arrival(of_dead)
    killed_us = begin + round(share * (arrival - begin)) - _ahead_us(of_dead)
    others_us = killed_us + round(ahead_sec * 1e6)
    for path, records in written.items():
        end_us = killed_us if path.stem == f"worker_{worker}" else others_us
        _write(path, records, end_us + _ahead_us(records))
    last_call_us = max(_arrival(records) - _ahead_us(records) for records in written.values())
    for path in folder.glob("engine/*.jsonl"):
        end_us = killed_us if path.stem.endswith(f"_{worker}") else others_us
        _cut(path, min(end_us, last_call_us))
    for path in folder.glob("step_*/trainer_*.jsonl"):
        # The trainer waits for the rollout of this step, and may train on that of the one before.
        _cut(path, 0 if path.parent.name == f"step_{step}" else others_us)


def _read(path: Path) -> list[Record]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def _ahead_us(records: list[Record]) -> int:
    """Return the time of the run's begin on the clock of the process that wrote these records."""
    opened: dict[str, int] = records[0]["extra"]
    return round((opened["wall_ns"] - opened["perf_ns"]) / 1000)


def _cut(path: Path, end_us: int) -> None:
    """Leave the header, and the records of what had ended until then."""
    header, *records = _read(path)
    end_us += _ahead_us([header])
    _save(path, [header, *(record for record in records if _end(record) <= end_us)])


def _save(path: Path, records: list[Record]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))


def _write(path: Path, records: list[Record], end_us: int) -> None:
    """Write what a worker would have written until its death; no worker passes the barrier."""
    header = [record for record in records if record["event"] == LOG_OPENED]
    done = [
        record
        for record in records
        if record["event"] not in CONTROL_EVENTS and _end(record) < _arrival(records)
    ]
    left = [record for record in done if _end(record) <= end_us]
    reports = list(_reports(records, end_us))
    _save(path, header + sorted(left + reports, key=_end))


def _arrival(records: list[Record]) -> int:
    return min(int(record["start_us"]) for record in records if kind_of(record["event"]).phase == "barrier")


def _end(record: Record) -> int:
    if "start_us" in record:
        return int(record["start_us"] + record["duration_sec"] * 1e6)
    moment = datetime.fromisoformat(record["timestamp"]) - datetime(1970, 1, 1, tzinfo=timezone.utc)
    return moment // timedelta(microseconds=1)


def _reports(records: list[Record], end_us: int) -> list[Record]:
    """Return the reports that the watchdog would have written until then: it checks once a second."""
    arrival = _arrival(records)
    due: dict[int, list[Record]] = defaultdict(list)
    for record in records:
        if "start_us" not in record or kind_of(record["event"]).phase not in WATCHED_PHASES:
            continue
        never = record["start_us"] >= arrival or _end(record) > arrival
        if record["start_us"] > arrival:
            continue  # it would come after the barrier, which no worker left
        age = FIRST_AGE_US
        while record["start_us"] + age < (end_us if never else min(_end(record), end_us)):
            due[-(-(record["start_us"] + age) // 1_000_000) * 1_000_000].append(record)
            age *= 2
    return [_report(moment, spans) for moment, spans in due.items() if moment <= end_us]


def _report(moment: int, spans: list[Record]) -> Record:
    stuck = [
        {
            "event": span["event"],
            **{key: span["extra"][key] for key in ("request_id", "turn") if key in span.get("extra", {})},
            "age_sec": (moment - span["start_us"]) / 1e6,
            "stack": [],
        }
        for span in spans
    ]
    first = spans[0]
    stamp = datetime.fromtimestamp(moment / 1e6, timezone.utc).isoformat()
    return {
        "timestamp": stamp,
        "event": OPEN_SPANS,
        "extra": {"open": len(stuck), "spans": stuck},
        "workid": first["workid"],
        "step": first["step"],
    }
