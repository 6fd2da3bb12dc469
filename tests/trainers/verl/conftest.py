"""Run verl's real rollout once per version, on the real engine on a CPU; the tests read the results."""

import datetime
import json
import os
import subprocess
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest
from own_group import end_group

from sglang_instrument import schema
from sglang_instrument.free_ports import free_port

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
ENVIRONMENTS = ROOT / ".envs"
VERSIONS = ("0.4.0", "0.4.1", "0.5.0", "0.6.0", "0.6.1")
LIMIT_SEC = 1200  # on a busy machine


@dataclass(frozen=True)
class Outcome:
    """The logs of one driver, and the outcome of each rank."""

    folder: Path
    ranks: list

    @property
    def version(self):
        return tuple(map(int, self.ranks[0]["version"].split(".")))

    @cached_property
    def logs(self):
        """Return the records of each file of run "run", without control records."""
        return self.records_of("run")

    def records_of(self, run):
        """Return the records of each file of a run, without control records."""
        paths = sorted((self.folder / run).rglob("*.jsonl"))
        return {str(path.relative_to(self.folder / run)): read_records(path) for path in paths}


def read_records(path):
    """Return the records of a file, each with `start_us`, which instant events do not log."""
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for record in records:
        at_us = round(datetime.datetime.fromisoformat(record["timestamp"]).timestamp() * 1e6)
        record.setdefault("start_us", at_us)
    return [record for record in records if record["event"] not in schema.CONTROL_EVENTS]


def interpreter(version):
    """Return the Python of a version's environment; skip the test if there is no environment."""
    python = ENVIRONMENTS / f"verl-{version}/bin/python"
    if not python.exists() or not (ENVIRONMENTS / "verl-model/.made").exists():
        pytest.skip(f"no environment for verl {version}: tests/environments/verl.sh {version}")
    return python


def environment(version, **more):
    """Return the environment variables that add our code and the stand-ins for a GPU."""
    shims = [HERE / "shims"] if version == "0.6.1" else [HERE / "shims", HERE / "shims_vllm"]
    inherited = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return {
        **inherited,
        "PYTHONPATH": os.pathsep.join(map(str, [ROOT, HERE, *shims])),
        "PYTHONWARNINGS": "ignore",
        "SGLANG_USE_CPU_ENGINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "VERL_LOGGING_LEVEL": "ERROR",
        "OMP_NUM_THREADS": "1",
        **more,
    }


def drive(version, folder, ranks=1, tensor_parallel=1):
    """Run `drive.py` on a number of ranks, and return its outcome."""
    python = interpreter(version)
    group = {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port())}
    group |= {"SGLANG_INSTRUMENT_LOG_DIR": str(folder), "EXPERIMENT_NAME": "run"}
    if tensor_parallel > 1:
        group["SGLANG_CPU_OMP_THREADS_BIND"] = "|".join(map(str, range(tensor_parallel)))
    command = [python, HERE / "drive.py", ENVIRONMENTS / "verl-model", folder, str(tensor_parallel)]
    processes = []
    for rank in range(ranks):
        variables = environment(version, RANK=str(rank), LOCAL_RANK=str(rank), **group)
        with (folder / f"output_{rank}.txt").open("w") as output:
            processes.append(
                subprocess.Popen(
                    list(map(str, command)),
                    env=variables,
                    cwd=folder,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            )
    try:
        codes = [process.wait(LIMIT_SEC) for process in processes]
    finally:
        for process in processes:
            end_group(process)
    if any(codes):
        raise AssertionError((folder / f"output_{codes.index(max(codes))}.txt").read_text()[-8000:])
    paths = [folder / f"outcome_{rank}.json" for rank in range(ranks)]
    return Outcome(folder, [json.loads(path.read_text()) for path in paths])


@pytest.fixture(scope="session", params=VERSIONS)
def outcome(request, tmp_path_factory):
    """One version on one rank."""
    return drive(request.param, tmp_path_factory.mktemp(f"verl_{request.param}"))


@pytest.fixture(scope="session")
def data_parallel(tmp_path_factory):
    """Two ranks, each with an engine and half of the requests."""
    return drive("0.5.0", tmp_path_factory.mktemp("verl_dp2"), ranks=2)


@pytest.fixture(scope="session")
def tensor_parallel(tmp_path_factory):
    """Two ranks that share one engine, which the first of them drives."""
    return drive("0.6.1", tmp_path_factory.mktemp("verl_tp2"), ranks=2, tensor_parallel=2)


@pytest.fixture
def run_in():
    """Run a script in a version's environment, with other folders first on its path; return its output."""

    def run(version, script, *paths):
        variables = environment(version)
        variables["PYTHONPATH"] = os.pathsep.join([*map(str, paths), variables["PYTHONPATH"]])
        command = [str(interpreter(version)), "-c", script]
        done = subprocess.run(command, env=variables, capture_output=True, text=True, timeout=LIMIT_SEC)
        assert done.returncode == 0, done.stderr[-4000:]
        return done

    return run
