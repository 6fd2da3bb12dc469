"""Start each engine and server of these tests once; the tests read what it logged, or go on using it.

- `engine_run`: an engine in a process, `support/engine_calls.py`, for `test_engine_calls.py`
  and `test_engine_profile.py`.
- `two_servers`: two, for `test_routed_engines.py`, `test_loop_servers.py`, `test_profile_servers.py`.
- `served`: the first of them; `test_waste_engine.py`, `test_weights_lineage.py` and `test_engine_logs.py`
  each read a part of its log.
- `killed`: what the first one left when its scheduler was killed, for `test_engine_logs.py`.
"""

import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from subprocess import PIPE

import pytest
from awaited import wait_for
from engine_log import kill_scheduler
from gateway import REQUEST_HEADER
from loops_served import PACED
from own_group import run_in_group
from served_parts import PROCESSES, ServedParts
from sglang_server import instrumented, start_server
from without_sglang import replies_without_sglang

CALLS = Path(__file__).parents[1] / "support/engine_calls.py"
#: Their tests kill the servers that they share with others; the second reads what the first's tests leave.
LAST = ("test_profile_servers.py", "test_engine_logs.py")
#: Record what the engine does in this step, until the step ends.
PROFILED = {
    "PROFILE_STEPS": "3",
    "PROFILE_OPTIONS": "activities=CPU,with_stack=0,record_shapes=0,num_steps=0",
}
LIMIT_SEC = 1800  # only a machine that hangs takes so long


def pytest_collection_modifyitems(items):
    """Run tests that kill servers after the others that use these servers."""
    place = {name: number for number, name in enumerate(LAST, 1)}
    items.sort(
        key=lambda item: (item.get_closest_marker("engine") is None, place.get(item.path.name, 0)),
    )


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
def two_servers(tmp_path_factory):
    """Two servers of one run; replies can be paced. In `engine/`, the first has the names without a host."""
    folder = tmp_path_factory.mktemp("two_servers")
    run_id = {"SGLANG_INSTRUMENT_RUN_ID": "20261124T000000-two"}  # they are launched apart, and are one run
    arguments = ("--context-length=1024", "--max-running-requests=8", "--enable-metrics", *PACED)
    servers = []
    try:
        for number in range(2):
            scratch = folder / f"server_{number}"
            scratch.mkdir()
            environment = instrumented(folder, **run_id, SGLANG_INSTRUMENT_REQUEST_HEADER=REQUEST_HEADER)
            servers.append(start_server(scratch, environment, *arguments, "--weight-version=0"))
            wait_for(lambda: has_logged(folder / "logs/run/engine"), "not all processes log")
        yield servers
    finally:
        for server in servers:
            server.kill()  # nobody reads what they still log; after SIGTERM they take up to half a minute


def has_logged(log):
    """Return whether the processes of a server have their files."""
    return all((log / f"{name}.jsonl").exists() for name in PROCESSES)


@pytest.fixture(scope="session")
def served(two_servers, tmp_path_factory):
    """The first server, which records `requests` of its engine, as is the default."""
    server = two_servers[0]
    return ServedParts(server, server.errors.parents[1] / "logs/run", tmp_path_factory.mktemp("parts"))


@pytest.fixture(scope="session")
def killed(served):
    """The first server, whose scheduler was killed while it worked on a request."""
    return kill_scheduler(served)


@pytest.fixture
def expected(tmp_path_factory):
    """What the model replies without SGLang; of a test's scope, so that it groups no tests."""
    return replies_without_sglang(tmp_path_factory)
