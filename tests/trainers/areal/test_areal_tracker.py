"""AReaL's real StatsLogger hands the numbers of a finished step to its trackers."""

import json
import os
import subprocess
from pathlib import Path

import pytest

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
ENVIRONMENT = ROOT / ".envs/areal"
LIMIT_SEC = 1800  # on a busy machine


def test_the_numbers_go_along_with_the_commit_of_their_step(tmp_path):
    if not (ENVIRONMENT / ".made").exists():
        pytest.skip("no environment for AReaL: tests/environments/areal.sh")
    variables = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    command = [ENVIRONMENT / "bin/python", "-W", "ignore", HERE / "track.py", tmp_path]
    done = subprocess.run(
        command, env=variables, cwd=tmp_path, capture_output=True, text=True, timeout=LIMIT_SEC
    )
    assert done.returncode == 0, done.stderr[-4000:]
    answer = json.loads((tmp_path / "answer.json").read_text())
    assert answer["states"] == {"tracker_open": "found", "tracker_log": "found"}
    assert answer["data"] == {"loss": 0.5}
    assert answer["wandb"] == answer["swanlab"]
    assert answer["wandb"] == [
        [0, {"loss": 0.5}],
        [1, {"loss": 0.5, "rollout/step_sec": 1.5}],
        [2, {"loss": 0.5}],
        [3, {"loss": 0.25}],
    ]
    late = [scalar for scalar in answer["scalars"] if scalar[0].startswith("rollout/")]
    assert late == [["rollout/step_sec", 1.5, 1], ["rollout/step_sec", 0.25, 0]]
