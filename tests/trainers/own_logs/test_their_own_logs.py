"""The readers of foreign logs read what the real projects write."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from sglang_instrument.analysis import open_run

HERE = Path(__file__).parent
ENVIRONMENTS = HERE.parents[2] / ".envs"
MLFLOW = ENVIRONMENTS / "mlflow/lib/python3.11/site-packages"
LIMIT_SEC = 600


def write(python, script, *arguments, folder, **environment):
    """Run a script that writes a log."""
    inherited = {
        name: os.environ[name] for name in ("PATH", "HOME", "LANG", "LD_LIBRARY_PATH") if name in os.environ
    }
    done = subprocess.run(
        [str(python), "-W", "ignore", str(HERE / script), *map(str, arguments)],
        env={**inherited, **environment, "SGLANG_INSTRUMENT": "0"},
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=LIMIT_SEC,
    )
    assert done.returncode == 0, done.stderr[-4000:]


def python_of(name):
    python = ENVIRONMENTS / name / "bin/python"
    if not python.is_file():
        pytest.skip(f"needs {python.parent.parent}: make environment-{name.replace('-', '_')}")
    return python


def test_areal_s_own_tracers_are_read(tmp_path):
    write(python_of("areal"), "areal_writes.py", tmp_path, folder=tmp_path)
    run = open_run(tmp_path)
    requests = run.digest.requests
    assert run.steps == [0, 1, 2]
    assert requests.group_by("step").len().sort("step")["len"].to_list() == [4, 4, 4]
    assert set(requests["turns"]) == {2}
    sessions = [
        json.loads(line)
        for path in tmp_path.rglob("sessions-r*.jsonl")
        for line in path.read_text().splitlines()
    ]
    for column, phase in (("engine_sec", "generate"), ("tool_sec", "toolcall"), ("reward_sec", "reward")):
        spans = [of_one["phases"][phase] for of_one in sessions]
        expected = [sum(span["end_ts"] - span["start_ts"] for span in of_session) for of_session in spans]
        assert sorted(requests[column]) == pytest.approx(sorted(expected), abs=1e-4)
    trainer = run.digest.steps.filter(role="trainer")
    assert trainer["step"].to_list() == [0, 1, 2]


@pytest.mark.parametrize("store", ["sqlite", "file"])
def test_verl_s_own_traces_and_metrics_are_read(tmp_path, store):
    if not MLFLOW.is_dir():
        pytest.skip("needs .envs/mlflow: make environment-mlflow")
    home = tmp_path / "mlflow"
    home.mkdir()
    uri = f"sqlite:///{home}/mlruns.db" if store == "sqlite" else f"file:{home}/mlruns"
    write(
        python_of("verl-server"),
        "verl_writes.py",
        uri,
        folder=tmp_path,
        PYTHONPATH=str(MLFLOW),
        MLFLOW_ALLOW_FILE_STORE="true",
        VERL_FILE_LOGGER_PATH=str(tmp_path / "metrics.jsonl"),
    )
    run = open_run(home)
    requests = run.digest.requests
    assert requests.sort("step")["validate"].to_list() == [False] * 3 + [True] * 3
    assert set(requests["turns"]) == {2}
    assert set(requests["response_tokens"]) == {14}
    assert run.digest.turns["response_tokens"].sort().to_list() == [6] * 6 + [8] * 6
    assert (requests["tool_sec"] >= 0.009).all()
    metrics = open_run(tmp_path / "metrics.jsonl")
    assert metrics.digest.steps["duration_sec"].to_list() == pytest.approx([3.5, 3.5])


def test_sglang_s_own_exporter_is_read(tmp_path):
    pytest.importorskip("sglang")
    write(sys.executable, "sglang_writes.py", tmp_path / "out", folder=tmp_path)
    run = open_run(tmp_path / "out")
    requests = run.digest.requests
    assert requests["duration_sec"].to_list() == pytest.approx([0.5] * 6)
    assert requests["response_tokens"].to_list() == [8] * 6
    assert set(requests["finish_reason"]) == {"length"}
