"""verl's real Tracking, of each version, hands the numbers of finished steps to real trackers."""

import json
import os
import subprocess
from functools import cache
from pathlib import Path

import pytest
from conftest import ENVIRONMENTS, HERE, LIMIT_SEC, ROOT, VERSIONS, environment, interpreter

TRACKERS = ENVIRONMENTS / "trackers"
SERVER = "server"  # the environment of verl 0.9.1
#: These take any step; W&B has rows, whose steps grow.
WITH_FILE = "tensorboard,mlflow,file,wandb"
WITHOUT_FILE = "tensorboard,mlflow"


def python_of(version):
    if not (TRACKERS / ".done").exists():
        pytest.skip("no trackers: tests/environments/trackers.sh")
    if version != SERVER:
        return interpreter(version)
    if not (ENVIRONMENTS / "verl-server/.made").exists():
        pytest.skip("no environment for verl's server mode: tests/environments/verl_server.sh")
    return ENVIRONMENTS / "verl-server/bin/python"


@pytest.fixture(scope="session")
def tracked(tmp_path_factory):
    """Log three steps with one version's Tracking; return the folder. Each only once."""

    @cache
    def run(version):
        python, folder = python_of(version), tmp_path_factory.mktemp(f"tracking_{version}")
        backends = WITHOUT_FILE if version.startswith(("0.4", "0.5")) else WITH_FILE
        switches = {"SGLANG_INSTRUMENT_LOG_DIR": str(folder), "RAY_AUTH_MODE": "disabled"}
        variables = environment("0.6.1" if version == SERVER else version, **switches)
        variables["PYTHONPATH"] += f"{os.pathsep}{TRACKERS}"
        done = subprocess.run(
            [python, "-W", "ignore", HERE / "track.py", folder, backends],
            env=variables,
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=LIMIT_SEC,
        )
        assert done.returncode == 0, done.stderr[-4000:]
        return folder

    return run


@pytest.fixture(params=[*VERSIONS, SERVER])
def folder(request, tracked):
    return tracked(request.param)


def answer(folder):
    return json.loads((folder / "answer.json").read_text())


def test_the_patches_are_found_and_what_the_trainer_logged_is_as_it_was(folder):
    answered = answer(folder)
    assert answered["patches"]["tracker_open"] == answered["patches"]["tracker_log"] == "found"
    assert answered["given"] == [{"loss": 1.0}, {"loss": 0.5}, {"loss": 1.0 / 3}]
    assert answered["scalars"]["rollout/requests"] == 4
    assert answered["scalars"]["rollout/cache_hit_share"] == 0.75
    [notice] = answered["notices"]
    assert "logging an earlier step to clearml failed" in notice


def test_tensorboard_has_the_numbers_under_their_own_steps(folder):
    logged = json.loads((folder / "tensorboard.json").read_text())
    assert [step for step, _ in logged["loss"]] == [1, 2, 3]
    assert [(step, value) for step, value in logged["rollout/requests"] if step < 3] == [(1, 4), (2, 4)]
    assert dict(map(tuple, logged["rollout/tokens"]))[2] == 80
    assert logged["rollout/step_sec"][0][1] > 0


def test_mlflow_has_the_numbers_under_their_own_steps(folder):
    [path] = folder.glob("mlflow/*/*/metrics/rollout/tokens")
    steps = {int(line.split()[2]): float(line.split()[1]) for line in path.read_text().splitlines()}
    assert steps[1] == 40
    assert steps[2] == 80
    [loss] = folder.glob("mlflow/*/*/metrics/loss")
    assert [int(line.split()[2]) for line in loss.read_text().splitlines()] == [1, 2, 3]


@pytest.mark.parametrize("version", ["0.6.1", SERVER])
def test_the_file_has_a_line_more_for_a_step_that_was_late(tracked, version):
    lines = [json.loads(line) for line in (tracked(version) / "file.jsonl").read_text().splitlines()]
    trainers = [line for line in lines if "loss" in line["data"]]
    assert [line["step"] for line in trainers] == [1, 2, 3]
    assert trainers[0]["data"]["rollout/tokens"] == 40
    assert trainers[1]["data"].keys() == {"loss"}
    [late] = [line for line in lines if "loss" not in line["data"]]
    assert (late["step"], late["data"]["rollout/tokens"]) == (2, 80)


@pytest.mark.parametrize("version", ["0.6.1", SERVER])
def test_wandb_offline_has_the_numbers_under_their_own_steps(tracked, version):
    """W&B's file is a log in the layout of LevelDB: blocks of 32 KiB, in which a record may be split."""
    from_file = """
        import json, struct, sys
        from wandb.proto import wandb_internal_pb2
        raw, at, parts, rows = open(sys.argv[1], "rb").read(), 7, b"", []
        while at + 7 <= len(raw):
            if 32768 - at % 32768 < 7:  # no header fits into the rest of a block
                at += 32768 - at % 32768
                continue
            _, size, kind = struct.unpack_from("<IHB", raw, at)
            parts += raw[at + 7 : at + 7 + size]
            at += 7 + size
            if kind not in (1, 4):  # neither a whole record nor the last part of one
                continue
            record, parts = wandb_internal_pb2.Record.FromString(parts), b""
            if record.WhichOneof("record_type") == "metric":
                metric = record.metric
                rows.append({"metric": metric.glob_name, "over": metric.step_metric, "_step": 0})
            if record.WhichOneof("record_type") == "history":
                items = record.history.item
                row = {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in items}
                rows.append({**row, "_step": record.history.step.num})
        print(json.dumps(rows))
    """
    program = "\n".join(line[8:] for line in from_file.splitlines())
    [path] = (tracked(version) / "wandb").glob("offline-run-*/run-*.wandb")
    variables = {**os.environ, "PYTHONPATH": str(TRACKERS)}
    done = subprocess.run(
        [python_of("0.6.1"), "-W", "ignore", "-c", program, path],
        capture_output=True,
        env=variables,
        check=True,
    )
    rows = {row["_step"]: row for row in json.loads(done.stdout)}
    assert sorted(rows) == [0, 1, 2, 3]
    assert rows[0] == {"metric": "rollout/*", "over": "rollout/step", "_step": 0}
    assert [rows[step]["loss"] for step in (1, 2, 3)] == [1.0, 0.5, 1.0 / 3]
    assert (rows[1]["rollout/step"], rows[1]["rollout/tokens"]) == (1, 40)
    assert "rollout/tokens" not in rows[2]  # not known yet
    assert (rows[3]["rollout/step"], rows[3]["rollout/tokens"]) == (2, 80)


def test_the_table_names_only_trackers_that_verl_has():
    tables = (ROOT / "patches/verl/tracker.toml").read_text()
    late = tables.partition('late_to = "')[2].partition('"')[0].split(", ")
    source = Path(ENVIRONMENTS / "verl-server/lib").glob("python3.*/site-packages/verl/utils/tracking.py")
    for path in source:
        assert [name for name in late if f'"{name}"' not in path.read_text()] == []
