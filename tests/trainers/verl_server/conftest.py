"""Run verl's server mode once for each way to switch us on; the tests read the results."""

import json
import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest
from logged import read_records
from logged_program import run_logged

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
ENVIRONMENT = ROOT / ".envs/verl-server"
MODEL = ROOT / ".envs/verl-server-model"
LIMIT_SEC = 1800  # it takes a minute on an idle machine; a hang must end, too
CALLS = 3  # of tools, in a step


@dataclass(frozen=True)
class Outcome:
    """The logs, the outcome and the output of one driver."""

    folder: Path
    driver: dict
    printed: str

    @property
    def logs(self):
        """Return the records of each file of the run."""
        return read_records(self.folder / "run")

    @property
    def processes(self):
        """Return the self-description of each process, including those without records."""
        return [json.loads(path.read_text()) for path in (self.folder / "run/processes").rglob("*.json")]


def interpreter():
    python = ENVIRONMENT / "bin/python"
    if not (ENVIRONMENT / ".made").exists() or not (MODEL / ".made").exists():
        pytest.skip("no environment for verl's server mode: tests/environments/verl_server.sh")
    return python


def without_hook(folder):
    """Return a Python with the environment's packages and entry points, but without its `.pth` files."""
    python = folder / "venv/bin/python"
    subprocess.run([interpreter(), "-m", "venv", "--without-pip", folder / "venv"], check=True)
    (packages,) = (folder / "venv/lib").glob("python3.*/site-packages")
    (layer,) = (ENVIRONMENT / "lib").glob("python3.*/site-packages")
    (packages / "layers.pth").write_text(f"{layer}\n{(layer / 'base.pth').read_text()}")
    return python


def drive(folder, mode, python, **more):
    """Run `drive.py` to its end."""
    printed = start(folder, "drive.py", mode, python, hook=False, **more)
    return Outcome(folder, json.loads((folder / "outcome.json").read_text()), printed)


def train(folder, mode, python, **more):
    """Run `train.py` to its end."""
    scalars = {"SGLANG_INSTRUMENT_SCALARS": "1", "VERL_FILE_LOGGER_PATH": str(folder / "tracked.jsonl")}
    platform = {"VERL_PLATFORM": "cpu", "VERL_USE_EXTERNAL_MODULES": "verl_cpu", "VERL_ENGINE_DEVICE": "cuda"}
    return Outcome(folder, {}, start(folder, "train.py", mode, python, **scalars, **platform, **more))


def start(folder, script, mode, python, **more):
    """Run one of the scripts here to its end; return what it printed, and its errors."""
    sockets = Path("/tmp") / f"r{os.getpid()}"  # a short path: the length of Ray's socket paths is limited
    variables = {
        "PYTHONWARNINGS": "ignore",
        "SGLANG_USE_CPU_ENGINE": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": "1",
        "RAY_TMPDIR": str(sockets),
        "RAY_AUTH_MODE": "disabled",
        "RAY_worker_niceness": "0",  # else Ray's processes yield to everything else on a busy machine
        "HANG": str(folder / "hang"),
        **more,
    }
    command = [python, "-W", "ignore", HERE / script, MODEL, folder, mode]
    try:
        done = run_logged(
            command, folder, limit_sec=LIMIT_SEC, paths=[HERE, HERE.parent / "verl/shims"], **variables
        )
    finally:
        shutil.rmtree(sockets, ignore_errors=True)
    return done.stdout + done.stderr


@pytest.fixture(scope="session")
def plain(tmp_path_factory):
    """Server mode without us."""
    return drive(tmp_path_factory.mktemp("plain"), "plain", interpreter())


@pytest.fixture(scope="session")
def outcome(tmp_path_factory):
    """Server mode with two servers behind verl's load balancer, reached by install() in the driver."""
    return drive(tmp_path_factory.mktemp("install"), "install", interpreter(), SERVERS="2")


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A training of two steps by verl's own trainer, reached by the entry points of verl and SGLang alone.

    It keeps verl's own `skip_tokenizer_init=True`, with which SGLang has no detokenizer; others set False.
    In step 2, tools wait for the numbers of step 1.
    """
    folder = tmp_path_factory.mktemp("trained")
    scalars = f"{folder}/run/live/scalars.jsonl"
    more = {"SKIP_TOKENIZER_INIT": "1", "WAIT_FOR": scalars, "WAIT_FROM_CALL": str(CALLS + 1)}
    return train(folder, "sync", without_hook(folder), **more)


@pytest.fixture(scope="session")
def separated(tmp_path_factory):
    """A training whose rollouts run ahead on a separate server, reached by the switch and the hook."""
    return train(tmp_path_factory.mktemp("separated"), "separate_async", interpreter())


@pytest.fixture(scope="session")
def fully_async(tmp_path_factory):
    """A training by the fully asynchronous recipe: a rollouter, a queue and a trainer, each on its own."""
    return train(tmp_path_factory.mktemp("fully_async"), "fully_async", interpreter())


@pytest.fixture(scope="session")
def one_step_off(tmp_path_factory):
    """A training by the recipe whose rollout is one step ahead of its trainer."""
    return train(tmp_path_factory.mktemp("one_step_off"), "one_step_off", interpreter())


@pytest.fixture(scope="session")
def dropped(tmp_path_factory):
    """Samples that verl's own queue and buffer threw away."""
    folder = tmp_path_factory.mktemp("dropped")
    return Outcome(folder, {}, start(folder, "dropping.py", "none", interpreter()))
