"""Workers that verl's RayWorkerGroup starts, and that load us without their driver, log as one run."""

import json
import subprocess

import pytest
from conftest import ENVIRONMENTS, HERE, environment, interpreter
from own_group import run_in_group

LIMIT_SEC = 1200


def test_workers_of_verls_own_group_log_as_one_run_by_external_lib_alone(tmp_path):
    python = interpreter("0.6.1")
    if subprocess.run([python, "-c", "import ray"], capture_output=True, check=False).returncode:
        pytest.skip("no Ray in the environment of verl 0.6.1")
    variables = environment(
        "0.6.1",
        EXPERIMENT_NAME="run",
        SGLANG_INSTRUMENT_LOG_DIR=str(tmp_path),
        RAY_AUTH_MODE="disabled",
        RAY_worker_niceness="0",
        RAY_USAGE_STATS_ENABLED="0",
    )
    external = "actor_rollout_ref.model.external_lib=sglang_instrument.auto"
    command = [python, HERE / "launched.py", ENVIRONMENTS / "verl-model", "2", "2", external]
    done = run_in_group(
        command,
        timeout=LIMIT_SEC,
        env=variables,
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-8000:]
    # The end of the driver kills the workers, possibly before the last step is closed: check the first one.
    paths = [tmp_path / f"run/step_1/worker_{rank}.jsonl" for rank in (0, 1)]
    logs = [list(map(json.loads, path.read_text().splitlines())) for path in paths]
    for records in logs:
        events = [record["event"] for record in records]
        assert events.count("async_rollout_request_complete") == 4
        assert "step_closed" in events
    assert len({records[0]["extra"]["run_id"] for records in logs}) == 1
