"""A trainer's program that runs as `python -m` is measured: its module is `__main__`, and never imported."""

import os
import subprocess
import sys

import pytest
from logged import read_records, recorded_events
from own_group import run_in_group

TABLE = """
trainer = "serving"
module = "serving.proxy"

[[patch]]
target = "answer"
region = [{ event = "tool_call", enter = { tool = "name" } }]
"""
PROGRAM = """
def answer(name):
    return name.upper()

def main():
    import colorsys  # a server imports more when it starts
    assert answer("search") == "SEARCH"
    import sys
    assert "serving.proxy" not in sys.modules

if __name__ == "__main__":
    main()
"""


@pytest.fixture
def folder(tmp_path):
    package, tables = tmp_path / "serving", tmp_path / "tables/serving"
    package.mkdir()
    tables.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "proxy.py").write_text(PROGRAM)
    (tables / "proxy.toml").write_text(TABLE)
    return tmp_path


def run(folder, **switch):
    """Run the program; return what it printed."""
    path = os.pathsep.join(filter(None, [str(folder), os.environ.get("PYTHONPATH", "")]))
    place = {"SGLANG_INSTRUMENT_LOG_DIR": str(folder), "EXPERIMENT_NAME": "run"}
    done = run_in_group(
        [sys.executable, "-m", "serving.proxy"],
        env={**os.environ, "PYTHONPATH": path, **place, **switch},
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout + done.stderr


def test_a_module_that_runs_as_main_is_measured(folder):
    run(folder, SGLANG_INSTRUMENT="1", SGLANG_INSTRUMENT_PATCHES=str(folder / "tables"))
    records = [
        record for records in read_records(folder / "run").values() for record in recorded_events(records)
    ]
    assert [record["extra"] for record in records] == [{"tool": "search"}]


def test_without_the_switch_it_runs_as_before(folder):
    run(folder, SGLANG_INSTRUMENT_PATCHES=str(folder / "tables"))
    assert not (folder / "run").exists()
