"""Run AReaL's real rollouts once, against a real SGLang server on a CPU; the tests read the result."""

import json
import os
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest
from own_group import end_group, run_in_group

from sglang_instrument.demo.cpu_platform import write_plugin
from sglang_instrument.free_ports import free_port
from sglang_instrument.schema import CONTROL_EVENTS

HERE = Path(__file__).parent
ROOT = HERE.parents[2]
ENVIRONMENTS = ROOT / ".envs"
LIMIT_SEC = 1800  # it takes a minute on an idle machine
SERVER = (
    "--device cpu --dtype float32 --attention-backend torch_native --sampling-backend pytorch "
    "--grammar-backend none --disable-cuda-graph --disable-overlap-schedule --max-total-tokens 4096 "
    "--max-running-requests 8 --context-length 1024 --chunked-prefill-size 512 --mem-fraction-static 0.2 "
    "--enable-metrics --sleep-on-idle --host 127.0.0.1"
)


@dataclass(frozen=True)
class Outcome:
    """The outcome that the driver wrote, and the records of each file of its run."""

    seen: dict
    logs: dict
    folder: Path

    def of(self, event, file=None):
        """Return the records of an event, in all files or in one."""
        files = self.logs.values() if file is None else [self.logs[file]]
        return [record for records in files for record in records if record["event"] == event]


@pytest.fixture(scope="session")
def outcome(tmp_path_factory):
    """One run of all rollouts."""
    python = ENVIRONMENTS / "areal/bin/python"
    if not (ENVIRONMENTS / "areal/.made").exists() or not (ENVIRONMENTS / "areal-model/.made").exists():
        pytest.skip("no environment for AReaL: tests/environments/areal.sh")
    folder = tmp_path_factory.mktemp("areal")
    port = str(free_port())
    with _server(python, folder, port):
        _run([python, HERE / "drive.py", ENVIRONMENTS / "areal-model", folder, port], folder)
    paths = sorted((folder / "run").rglob("*.jsonl"))
    logs = {str(path.relative_to(folder / "run")): _records(path) for path in paths}
    return Outcome(json.loads((folder / "outcome.json").read_text()), logs, folder / "run")


def _records(path):
    records = [json.loads(line) for line in path.read_text().splitlines()]
    return [record for record in records if record["event"] not in CONTROL_EVENTS]


class _server:  # noqa: N801 - used like a function
    """Run a real server during a block; end its process group after it."""

    def __init__(self, python, folder, port):
        write_plugin(folder / "plugin")
        self.port, self.folder = port, folder
        command = [python, "-W", "ignore", "-m", "sglang.launch_server", "--port", port, *SERVER.split()]
        self.command = [*command, "--model-path", ENVIRONMENTS / "areal-model"]

    def __enter__(self):
        with (self.folder / "server.txt").open("w") as output:
            self.process = subprocess.Popen(
                list(map(str, self.command)),
                env=_environment(self.folder / "plugin"),
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        try:
            self._await_health()
        except BaseException:
            self.__exit__()
            raise

    def __exit__(self, *exception):
        end_group(self.process)

    def _await_health(self):
        deadline = time.monotonic() + LIMIT_SEC
        while time.monotonic() < deadline and self.process.poll() is None:
            try:
                with urlopen(f"http://127.0.0.1:{self.port}/health", timeout=60):
                    return
            except (URLError, OSError):
                time.sleep(0.5)
        pytest.fail((self.folder / "server.txt").read_text()[-4000:])


def _run(command, folder):
    with (folder / "driver.txt").open("w") as output:
        done = run_in_group(
            command,
            env=_environment(HERE),
            cwd=folder,
            stdout=output,
            stderr=output,
            timeout=LIMIT_SEC,
        )
    assert done.returncode == 0, (folder / "driver.txt").read_text()[-6000:]


def _environment(*paths):
    inherited = {name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ}
    return {
        **inherited,
        "PYTHONPATH": os.pathsep.join(map(str, [ROOT, *paths])),
        "PYTHONWARNINGS": "ignore",
        "TOKENIZERS_PARALLELISM": "false",
        "OMP_NUM_THREADS": "1",
    }
