"""A span's own record says all that `open_now` said of it: each command answers as if there were none.

Where a step has no end, the last `open_now` is all that is known of what was open: `test_unended.py`.
"""

import json

import pytest
from alike import differs

from sglang_instrument.analysis import open_run
from sglang_instrument.cli.main import main
from sglang_instrument.testing import BlockedLoop, Hang, SlowEngine, synthetic_run

OPEN = {
    "open": {
        "total_step_duration": 1,
        "async_rollout_request_complete": 8,
        "turn_end": 7,
        "tool_execution": 1,
    },
    "requests": {"turn_end": 7, "tool_execution": 1},
    "oldest": [
        {"event": "tool_execution", "request_id": "r0", "turn": 1, "age_sec": 1000.5},
        {"event": "turn_engine_call", "request_id": "event_loop_block", "turn": 0, "age_sec": 2.5},
    ],
    "phases": {"prompt_tokens": "tool", "e2e_latency": "tool", "engine_request": "request"},
    "uncounted": 3,
}
COMMANDS = ["summary", "check", "events", "requests", "workers", "turns", "lengths", "gaps"]


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """Return the folders of the same run without and with `open_now` records."""
    without, having = (tmp_path_factory.mktemp(name) / "exp" for name in ("without", "having"))
    causes = [SlowEngine(step=1, worker=1), BlockedLoop(step=1, worker=0), Hang(step=2, worker=1)]
    for folder in (without, having):
        synthetic_run(folder, steps=3, workers=2, requests=6, causes=causes, engine_clocks={0: 0.0, 1: 0.0})
    for path in having.rglob("*.jsonl"):
        lines = path.read_text().splitlines()
        if any(json.loads(line)["event"] == "step_closed" for line in lines):
            path.write_text("".join(_with_open_now(lines)))
    return without, having


def _with_open_now(lines):
    for number, line in enumerate(lines):
        yield line + "\n"
        if number % 5 == 0:
            record = json.loads(line)
            bound = {key: record[key] for key in ("workid", "step", "validate") if key in record}
            stamp = record["timestamp"]
            yield json.dumps({"timestamp": stamp, "event": "open_now", "extra": OPEN, **bound}) + "\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_prints_the_same(runs, command, capsys):
    printed = []
    for folder in runs:
        code = main([command, str(folder), "--json"])
        text = capsys.readouterr().out.replace(str(folder), "LOGS")
        printed.append([code, json.loads(text)])
    assert printed[0][1]
    assert differs(*printed) == ""


def test_nothing_is_kept_of_them_where_the_step_was_closed(runs):
    without, having = map(open_run, runs)
    assert having.health == without.health
    controls = [[control.event for control in file.controls] for file in having.files]
    assert controls == [[control.event for control in file.controls] for file in without.files]
