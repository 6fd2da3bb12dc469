"""Real rollouts from checkouts that a user names: `make test-trainers ROLL=DIR`.

A checkout needs its trainer's packages in a Python, TRAINER_PYTHON, or the one that runs the tests; packages
that the rollout does not need are replaced. Without the variable, a test is skipped and says so; the shapes
of `tests/tables/shapes` then stand in for the trainer.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from logged import read_records, recorded_events

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
LIMIT_SEC = 600


@pytest.fixture
def drive(tmp_path):
    """Run a driver over the checkout that a variable names; return what it printed, and the log."""

    def driven(variable, script):
        checkout = os.environ.get(variable)
        if not checkout:
            pytest.skip(f"no checkout: make test-trainers {variable}=DIR")
        done = subprocess.run(
            [os.environ.get("TRAINER_PYTHON", sys.executable), "-W", "ignore", HERE / script, checkout],
            env={
                **{name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ},
                "PYTHONPATH": os.pathsep.join([str(ROOT), str(HERE), os.environ.get("TRAINER_PATH", "")]),
                "SGLANG_INSTRUMENT": "1",
                "EXPERIMENT_NAME": "run",
                "SGLANG_INSTRUMENT_LOG_DIR": str(tmp_path),
            },
            cwd=tmp_path,
            capture_output=True,
            text=True,
            timeout=LIMIT_SEC,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        records = read_records(tmp_path / "run")
        return json.loads(done.stdout.splitlines()[-1]), {
            path: recorded_events(of_file) for path, of_file in records.items()
        }

    return driven


def test_each_of_roll_s_managers_has_its_turns_calls_and_answers(drive):
    printed, logs = drive("ROLL", "drive_roll.py")
    assert set(printed["played"].values()) == {2}
    for step, name in enumerate(printed["played"], 1):
        records = logs[f"step_{step}/worker_0.jsonl"]
        for event in ("turn_end", "turn_pre_process", "turn_engine_call", "tool_execution"):
            of_event = [record["extra"] for record in records if record["event"] == event]
            assert [extra["turn"] for extra in of_event] == [0, 1], (name, event)
            assert {extra["request_id"] for extra in of_event} == {5}
        calls = [record["extra"] for record in records if record["event"] == "turn_engine_call"]
        assert [call["generated_tokens"] for call in calls] == [3, 3]
