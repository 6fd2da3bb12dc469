"""Make a run whose names, ids and messages all contain terminal escape sequences and markup."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import orjson

from sglang_instrument.schema import CONTROL_EVENTS, EVENTS
from sglang_instrument.testing import BlockedLoop, Hang, SlowEngine, synthetic_run

#: Sets the title, changes the colour, clears the screen, moves the cursor back, turns the direction of
#: writing, forges a line, is markup to rich.
COMMANDS = (
    "\x1b]0;owned\x07\x1b[5;41m\x9b2J\r\x08\x0b\x0c\x7f\x00\t\u202e\u2066\u2028\nlog: whole [bold red]z[/]"
)
#: For names of files and folders: without NUL and slash, with a byte that is not UTF-8.
IN_NAMES = os.fsdecode(b"\x1b[5;41m\r\n\xff") + "\x9b2J\u202e[bold red]"
#: Strings that the reader needs to recognise a record; they stay unchanged.
_STRUCTURAL = ("timestamp", "phase", "state", "role", "ph", "cat")
_KNOWN = (EVENTS.keys() | CONTROL_EVENTS) - {"padding_duration"}  # one of them stands for a user's event


def hostile_run(folder: Path) -> Path:
    """Write a small run with all kinds of records, in a folder and with files whose names are hostile."""
    run = synthetic_run(
        folder / f"run{IN_NAMES}",
        steps=4,
        workers=2,
        requests=8,
        validate_every=2,
        causes=[SlowEngine(2, 1, factor=6.0), BlockedLoop(3, 0, at_sec=1.0, seconds=0.5), Hang(4, 1)],
        engine_clocks={0: 0.0, 1: 3.0},
    )
    for path in sorted(run.rglob("*.jsonl")):
        lines = [hostile(json.loads(line)) for line in path.read_bytes().splitlines()]
        path.write_bytes(b"".join(orjson.dumps(line) + b"\n" for line in lines))
    _add_files(run)
    return run


def _add_files(run: Path) -> None:
    """Add self-descriptions of processes, and files that are not logs."""
    run_id = json.loads((run / "step_1/worker_0.jsonl").read_bytes().splitlines()[0])["extra"]["run_id"]
    for name in ("worker_0", "worker_1", f"trainer_0.{IN_NAMES}", "worker_7", f"reached/{IN_NAMES}"):
        path = run / "processes" / f"{name}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(orjson.dumps({**hostile(_facts()), "run_id": run_id}))
    (run / "processes" / f"worker_9{IN_NAMES}.json").write_text(COMMANDS)
    (run / "step_1" / f"{IN_NAMES}.jsonl").write_text("{}\n")
    (run / "step_1" / f"worker_0.{IN_NAMES}.jsonl").write_text(f"{COMMANDS}\n")
    (run / "step_2" / f"worker_0.{IN_NAMES}.jsonl.zst").write_text(f"{COMMANDS}\n")


def _facts() -> dict[str, Any]:
    return {
        "role": "worker",
        "rank": 0,
        "host": "host",
        "pid": 1,
        "actor": "actor",
        "command": ["python", "-m", "sglang.launch_server"],
        "versions": {"verl": "0.6.1", "sglang": "0.5.5"},
        "records": {"recorded": 1, "dropped": 2},
        "patches": [
            {"table": "t", "event": "e", "target": "m:f", "state": "missing", "note": "why"},
            {"table": "t", "event": "e2", "target": "m:g", "state": "found"},
        ],
        "notices": [{"notice": "the disk is odd", "times": 3}],
    }


def hostile(value: Any, key: str = "") -> Any:
    """Return JSON with every string made hostile, except those that the reader needs."""
    if isinstance(value, dict):
        return {name: hostile(below, name) for name, below in value.items()}
    if isinstance(value, list):
        return [hostile(item, key) for item in value]
    if not isinstance(value, str) or key in _STRUCTURAL or (key == "event" and value in _KNOWN):
        return value
    return value + COMMANDS
