"""Start one real server for all tests of the twin, by the twin's own launcher, and record a rollout on it."""

import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from awaited import wait_for_rids
from sglang_server import ARGUMENTS, IN_TURN, instrumented, model_of_the_demo

from sglang_instrument.demo.cpu_platform import write_plugin
from sglang_instrument.twin.servers.launches import launched

SUPPORT = Path(__file__).parents[1] / "support"
STEPS, LIMIT = 2, 16
ENOUGH = 4  # groups of six
REPLY = {"REPLY": "15"}  # tokens, the median; the server needs most of its time for them
#: Pieces of prompts, so that a prompt reaches its node in the cache after its last piece.
OPTIONS = (
    "--context-length=2048",
    "--max-total-tokens=65536",
    "--chunked-prefill-size=256",
    "--enable-metrics",
)


@dataclass
class Recorded:
    """A rollout that was recorded on a server that goes on running.

    Attributes:
        url: Of the server.
        folder: Of the run.
        plan: What each request asked for: its group, and by turn the tokens of the prompt, those that it
            shares with the sequence so far, and those of the reply.
    """

    url: str
    folder: Path
    plan: dict


@pytest.fixture(scope="session")
def recorded(tmp_path_factory):
    """The real server, and a rollout in a closed loop that was recorded on it."""
    scratch = tmp_path_factory.mktemp("twin")
    write_plugin(scratch)
    path = os.pathsep.join(filter(None, (str(scratch), os.environ.get("PYTHONPATH"))))
    run_id = {"SGLANG_INSTRUMENT_RUN_ID": "20261127T000000-record"}
    environment = {**instrumented(scratch, **run_id), "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-m", "sglang.launch_server"]
    command += ["--model-path", str(model_of_the_demo()), *ARGUMENTS, IN_TURN, *OPTIONS]
    with launched(command, 1, environment, scratch / "printed") as [url]:
        roll_out(scratch, url, run_id)
        plan = json.loads((scratch / "plan.json").read_text())
        yield Recorded(url, scratch / "logs/run", plan)


@pytest.fixture(scope="session")
def oversampled(recorded):
    """A rollout on the same server whose workers start more groups than they need, and sample coldly."""
    scratch = recorded.folder.parents[1]
    how = {"ENOUGH": str(ENOUGH), "TEMPERATURE": "0.5", "LOGPROBS": "1"}
    run_id = {"SGLANG_INSTRUMENT_RUN_ID": "20261127T000000-record"}
    roll_out(scratch, recorded.url, {**run_id, **how}, "oversampled")
    folder, server_logs = scratch / "logs/oversampled", recorded.folder / "engine"
    lines = [
        json.loads(line) for path in folder.glob("step_*/*.jsonl") for line in path.read_text().splitlines()
    ]
    rids = {line["extra"]["rid"] for line in lines if line["event"] == "generate"}
    wait_for_rids(server_logs, "server_0.jsonl", "engine_request", rids)
    shutil.copytree(server_logs, folder / "engine")
    return folder


def roll_out(folder, url, variables, name="run"):
    """Record a rollout as `folder/logs/run`, with its plan beside it."""
    program = [sys.executable, SUPPORT / "closed_loop.py", name, folder / "logs", STEPS, LIMIT]
    command = [*map(str, program), str(folder / "plan.json"), url]
    done = subprocess.run(command, env={**os.environ, **REPLY, **variables}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-4000:]
