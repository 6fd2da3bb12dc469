"""Real rollouts from checkouts that a user names: `make test-trainers SLIME=DIR MILES=DIR NEMO=DIR ROLL=DIR`.

A test whose variable names no checkout is skipped and says so; the shapes of `tests/tables/shapes`, and the
stand-ins of `tests/trainers/slime` and `tests/trainers/miles`, then stand in for the trainer.
TRAINER_PYTHON runs the drivers; it is the environment of verl's server mode if that is made, else the
Python that runs the tests. What a checkout imports and the Python lacks is replaced by `stubs.py`, and
named by the driver.
"""

import io
import json
import os
import sys
from contextlib import redirect_stdout
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import pytest
from generate_stand_in import REPLY, serve
from logged import read_records, recorded_events
from logged_program import run_logged
from sglang_server import model_of_the_demo

from sglang_instrument.cli.main import main

HERE = Path(__file__).parent
ENVIRONMENT = HERE.parents[2] / ".envs/verl-server"
REQUEST = "async_rollout_request_complete"
LIMIT_SEC = 900
#: What stands in for each checkout: code of our own with the trainer's names.
STAND_INS = {
    "SLIME": "tests/trainers/slime",
    "MILES": "tests/trainers/miles",
    "NEMO": "tests/tables/shapes/nemo_rl",
    "ROLL": "tests/tables/shapes/roll",
}


@dataclass(frozen=True)
class Driven:
    """What a driver printed, what it logged below `folder`, and what its server answered."""

    printed: dict
    folder: Path
    counted: object = None

    @cached_property
    def logs(self):
        return {path: recorded_events(records) for path, records in read_records(self.folder).items()}

    def extras(self, event, place):
        """Return the fields of the records of an event in a folder of a step."""
        records = self.logs[f"{place}/worker_0.jsonl"]
        return [record.get("extra", {}) for record in records if record["event"] == event]

    @property
    def waste(self):
        """Return the tokens of all steps by what became of them, as `waste --json` has them."""
        with redirect_stdout(io.StringIO()) as printed:
            assert main(["waste", str(self.folder), "--json"]) == 0
        return json.loads(printed.getvalue())["total"]


def checkout_of(variable):
    """Return the checkout that a variable names; skip the test if there is none."""
    if not os.environ.get(variable):
        pytest.skip(f"no checkout: make test-trainers {variable}=DIR; {STAND_INS[variable]} stands in for it")
    return os.environ[variable]


def drive(script, folder, *arguments, **variables):
    """Run a driver; return the last line that it printed."""
    python = ENVIRONMENT / "bin/python" if (ENVIRONMENT / ".made").exists() else sys.executable
    done = run_logged(
        [os.environ.get("TRAINER_PYTHON", python), "-W", "ignore", HERE / script, *arguments],
        folder,
        limit_sec=LIMIT_SEC,
        paths=[HERE, *filter(None, [os.environ.get("TRAINER_PATH")])],
        SGLANG_USE_CPU_ENGINE="1",
        OMP_NUM_THREADS="1",
        **variables,
    )
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def rolled(tmp_path_factory):
    """Run a driver in one way over the stand-in for `/generate`, each way once."""

    @cache
    def run(variable, script, way, reply=REPLY, long=100):
        checkout = checkout_of(variable)
        folder = tmp_path_factory.mktemp(way)
        with serve(reply, long) as server:
            printed = drive(script, folder, checkout, model_of_the_demo(), server.port, way)
        return Driven(printed, folder / "run", server.counted)

    return run
