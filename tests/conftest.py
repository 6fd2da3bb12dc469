"""Give every test an empty log folder, and leave the process as it was before."""

import gc
import os
import subprocess
import sys
import textwrap
from collections import Counter
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import pytest
from grouped import group_of_each
from logged import read_records

import sglang_instrument
from sglang_instrument.config import PREFIX
from sglang_instrument.recording.measure import context, identity
from sglang_instrument.recording.safety import notices

try:
    from hypothesis import HealthCheck, settings
except ImportError:  # environments of trainers have none
    pass
else:
    # The same examples in each run and on each machine. `--hypothesis-profile random` draws new ones.
    untimed = {"deadline": None, "suppress_health_check": [HealthCheck.too_slow]}  # the machine may be busy
    settings.register_profile("same", derandomize=True, database=None, **untimed)
    settings.register_profile("random", derandomize=False, print_blob=True, **untimed)
    settings.load_profile("same")


@pytest.hookimpl(wrapper=True)
def pytest_collection():
    """Collect no garbage meanwhile, a fifth of the time; afterwards rarely, and only new objects."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.set_threshold(20_000)  # objects; importing torch makes 400,000
        gc.enable()


@pytest.hookimpl(tryfirst=True)  # before pytest-xdist reads the groups
def pytest_collection_modifyitems(items):
    """Keep tests that share a fixture in one process; begin with those of engines, and with large groups.

    A process that is alone with a long group at the end leaves the other cores idle.
    """
    groups = group_of_each(items)
    sizes = Counter(groups.values())
    items.sort(key=lambda item: (item.get_closest_marker("engine") is None, -sizes[groups.get(item)]))
    if any(find_spec(name) is None for name in ("torch", "sglang", "transformers")):
        without = pytest.mark.skip(reason="the demo's requirements are not installed")
        for item in filter(lambda item: item.get_closest_marker("engine"), items):
            item.add_marker(without)
    for item, group in groups.items():
        item.add_marker(pytest.mark.xdist_group(group))


def pytest_collection_finish(session):
    """Stop where groups are ignored: each process would start engines of its own."""
    grouped = [item for item in session.items if item.get_closest_marker("xdist_group")]
    if session.config.getoption("loadgroup", False) and not all("@" in item.nodeid for item in grouped):
        raise pytest.UsageError("this pytest-xdist keeps no groups together with this pytest")


@pytest.fixture(autouse=True)
def switched_off_afterwards(monkeypatch):
    for name in [*filter(lambda name: name.startswith(PREFIX), os.environ), "EXPERIMENT_NAME", "RANK"]:
        monkeypatch.delenv(name, raising=False)
    notices.forget()
    yield
    sglang_instrument.uninstall()
    context.forget_all()
    identity.forget()
    notices.forget()


@pytest.fixture
def log_dir(tmp_path):
    """The folder of all runs; it does not exist yet."""
    return tmp_path / "logs"


@pytest.fixture
def install(log_dir):
    """Install in this process, for the run `log_dir/run`; returns its folder."""

    def install_here(**config):
        sglang_instrument.install(**{"log_dir": str(log_dir), "experiment": "run", **config})
        return Path(sglang_instrument.status()["folder"])

    return install_here


@pytest.fixture
def stored(monkeypatch):
    """Store the tables of a run of any size, as those of a large one: the next command reads them."""
    monkeypatch.setattr("sglang_instrument.analysis.store.homes._WORTHWHILE_BYTES", 1)


@pytest.fixture
def records_below():
    """Read a folder: `records_below(folder)` is {path: [record, ...]}, control records included."""
    return read_records


@dataclass
class Script:
    """A script that runs, or ran, in its own process."""

    process: subprocess.Popen
    folder: Path

    def wait(self, code=0, timeout=600):
        """Wait for its end, with exit code `code`; a negative one is a signal."""
        self.stdout, self.stderr = self.process.communicate(timeout=timeout)
        assert self.process.returncode == code, self.stderr
        return self

    def says(self, expected):
        """Wait until it prints the line `expected`."""
        for line in self.process.stdout:
            if line.strip() == expected:
                return
        pytest.fail(f"{expected!r} was not printed: {self.process.stderr.read()}")

    def tell(self, text):
        """Send it a line."""
        self.process.stdin.write(f"{text}\n")
        self.process.stdin.flush()

    @property
    def records(self):
        """Return all records of the run: {path: [record, ...]}."""
        return read_records(self.folder)


@pytest.fixture
def start_script(log_dir, tmp_path):
    """Start Python code in another process with a clean environment, which logs to `log_dir/run`.

    The code is written to `file` if one is given: functions that `-c` defines have no source.
    """
    started = []

    def start(source, *, file=None, **environment):
        source = textwrap.dedent(source)
        if file is not None:
            file.write_text(source)
        clean = {name: value for name, value in os.environ.items() if not name.startswith(PREFIX)}
        clean |= {"EXPERIMENT_NAME": "run", f"{PREFIX}LOG_DIR": str(log_dir)}
        process = subprocess.Popen(
            [sys.executable, *(["-c", source] if file is None else [str(file)])],
            env=clean | environment,
            cwd=tmp_path,
            text=True,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        started.append(process)
        return Script(process, log_dir / "run")

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def run_script(start_script):
    """Run Python code to its end: `run_script("...", code=0)`."""

    def run(source, code=0, **environment):
        return start_script(source, **environment).wait(code)

    return run
