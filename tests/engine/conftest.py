"""Start each engine and server of these tests once; the tests read what it logged, or go on using it.

- `engine_run`: an engine in a process, `support/engine_calls.py`, for `test_engine_calls.py`
  and `test_engine_profile.py`.
- `served`: a server; `test_waste_engine.py`, `test_weights_lineage.py` and `test_engine_logs.py` each read a
  part of its log.
- `two_servers`: two, for `test_routed_engines.py`, `test_loop_servers.py`, `test_profile_servers.py`.
"""

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE

import pytest
from loops_served import PACED
from own_group import run_in_group
from served_parts import ServedParts
from sglang_server import instrumented, start_server, start_servers

CALLS = Path(__file__).parents[1] / "support/engine_calls.py"
#: Their tests kill the servers that they share with others.
LAST = ("test_engine_logs.py", "test_profile_servers.py")
#: Record what the engine does in this step, until the step ends.
PROFILED = {
    "PROFILE_STEPS": "3",
    "PROFILE_OPTIONS": "activities=CPU,with_stack=0,record_shapes=0,num_steps=0",
}
LIMIT_SEC = 1800  # only a machine that hangs takes so long


def pytest_collection_modifyitems(items):
    """Run tests that kill servers after the others that use these servers."""
    items.sort(key=lambda item: (item.get_closest_marker("engine") is None, item.path.name in LAST))


@dataclass
class EngineRun:
    """What `engine_calls.py` logged, and how the patched functions looked to it."""

    folder: Path
    looks: list


@pytest.fixture(scope="session")
def engine_run(tmp_path_factory):
    """One engine that was called in every way."""
    folder = tmp_path_factory.mktemp("engine")
    clean = {name: value for name, value in os.environ.items() if not name.startswith("SGLANG_INSTRUMENT")}
    settings = {"LOG_DIR": str(folder / "logs"), **PROFILED}
    ours = {f"SGLANG_INSTRUMENT_{name}": text for name, text in settings.items()}
    done = run_in_group(
        [sys.executable, CALLS],
        env={**clean, **ours, "EXPERIMENT_NAME": "run", "OMP_NUM_THREADS": "1"},
        cwd=folder,
        stderr=PIPE,
        text=True,
        timeout=LIMIT_SEC,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    return EngineRun(folder / "logs/run", json.loads((folder / "looks.json").read_text()))


@pytest.fixture(scope="session")
def served(tmp_path_factory):
    """A server that records `requests` of its engine, as is the default."""
    folder = tmp_path_factory.mktemp("served")
    arguments = ("--max-running-requests=4", "--enable-metrics", "--weight-version=0")
    server = start_server(folder, instrumented(folder), *arguments)
    try:
        yield ServedParts(server, folder / "logs/run", folder / "parts")
    finally:
        server.stop()


@pytest.fixture(scope="session")
def two_servers(tmp_path_factory):
    """Two servers of one run; replies can be paced."""
    folder = tmp_path_factory.mktemp("two_servers")
    run_id = {"SGLANG_INSTRUMENT_RUN_ID": "20261124T000000-two"}  # they are launched apart, and are one run
    arguments = ("--context-length=1024", "--max-running-requests=8", "--enable-metrics", *PACED)
    with start_servers(folder, 2, instrumented(folder, **run_id), *arguments) as servers:
        yield servers
