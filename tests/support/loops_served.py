"""Run `served_loop.py` over one and two real servers; hold what `loop --replicas` says against it."""

import json
import os
import subprocess
import sys
from contextlib import AbstractContextManager
from pathlib import Path
from typing import NamedTuple

from sglang_server import Server, start_servers

from sglang_instrument.analysis.changes.replicas import Replicas, with_replicas
from sglang_instrument.analysis.ledger.loop import Loop
from sglang_instrument.analysis.ledger.loop_of_run import loop_of
from sglang_instrument.analysis.run.opening import Run

SCRIPT = Path(__file__).parent / "served_loop.py"
RUNNING = 4
#: Other servers that start meanwhile take memory that SGLang counts as this one's.
MEMORY = ("--mem-fraction-static=0.7", "--max-total-tokens=8192")
#: What a server needs so that the loop can pace its batches.
PACED = ("--enable-custom-logit-processor", *MEMORY)
ARGUMENTS = (f"--max-running-requests={RUNNING}", "--disable-radix-cache", *PACED)
NOT_MEASURED = {"SGLANG_INSTRUMENT": "0"}


class Held(NamedTuple):
    """A prediction and what was measured: seconds of a step of the loop, as means.

    Attributes:
        shape: Of the loop.
        recorded, servers: How many servers served the run that was read, and the one that was predicted.
        was_sec, predicted_sec, measured_sec: Of the first, as predicted, and of the second.
    """

    shape: str
    recorded: int
    servers: int
    was_sec: float
    predicted_sec: float
    measured_sec: float

    @property
    def ratio(self) -> float:
        """Predicted over measured."""
        return self.predicted_sec / self.measured_sec


def two_servers(folder: Path) -> AbstractContextManager[list[Server]]:
    """Start two servers at once, which log nothing; end them."""
    return start_servers(folder, 2, NOT_MEASURED, *ARGUMENTS)


def train(folder: Path, servers: list[Server], shape: str, steps: int, sec: float, requests: int) -> Path:
    """Run the loop over these servers; return the run."""
    name = f"{shape}_{len(servers)}"
    ports = json.dumps([server.port for server in servers])
    command = [sys.executable, SCRIPT, folder, name, ports, steps, shape, sec, requests]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SGLANG_INSTRUMENT")}
    done = subprocess.run([*map(str, command)], env=clean, capture_output=True, text=True, timeout=1200)
    assert done.returncode == 0, done.stderr
    return folder / name


def hold(one_server: Path, two: Path, running: int = RUNNING) -> list[Held]:
    """Predict each of two runs, over one and over two servers with this limit, from the other."""
    runs = [Run.open(folder, cached=False) for folder in (one_server, two)]
    loops = [loop_of(run) for run in runs]
    predictions = []
    for number, more in ((0, 1), (1, -1)):
        prediction = with_replicas(loops[number], more, recorded=number + 1, running=running)
        was, measured = (loop.mean()["to_next_step_sec"] for loop in (loops[number], loops[1 - number]))
        predictions.append(_held(loops[number], prediction, was, measured))
    return predictions


def _held(loop: Loop, prediction: Replicas, was: float | None, measured: float | None) -> Held:
    saved = prediction.mean["saved_sec"]
    assert was is not None
    assert measured is not None
    assert saved is not None
    return Held(str(loop.shape()), prediction.recorded, prediction.servers, was, was - saved, measured)
