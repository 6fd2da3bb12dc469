"""What .ci/run does with tests that fail: few of them run once more, and what fails twice has failed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ONCE_MORE = Path(__file__).parents[2] / ".ci/once_more"
PARALLEL = ("--numprocesses", "2", "--dist", "loadgroup", "--no-loadscope-reorder")
FLAKY = """
import pathlib
def {name}():
    before = pathlib.Path("{name}")
    if not before.exists():
        before.touch()
        raise AssertionError("the first time")
"""
GROUPED = """
import pytest
@pytest.mark.xdist_group("engine")
@pytest.mark.parametrize("number", range({tests}))
def test_grouped(number):
    assert {passes}
"""


def outcome(folder, **files):
    """Return the exit code, the output, and the tests that passed only when they ran once more."""
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text)
    named = folder / "named"
    command = [ONCE_MORE, sys.executable, "-m", "pytest", *PARALLEL, "."]
    environment = {**os.environ, "FAILED_ONCE": str(named), "PYTHONDONTWRITEBYTECODE": "1"}
    done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, text=True, timeout=600)
    return done.returncode, done.stdout, named.read_text().split() if named.exists() else []


@pytest.mark.parametrize("grouped", [False, True])
def test_what_fails_by_chance_passes_and_is_named(grouped, tmp_path):
    mark = 'import pytest\npytestmark = pytest.mark.xdist_group("engine")\n' if grouped else ""
    code, said, named = outcome(tmp_path, test_a=mark + FLAKY.format(name="test_flaky"))
    assert code == 0, said
    assert named == ["test_a.py::test_flaky" + "@engine" * grouped]


def test_what_fails_twice_has_failed_also_beside_what_passes_then(tmp_path):
    code, said, named = outcome(
        tmp_path,
        test_a=FLAKY.format(name="test_flaky"),
        test_b=GROUPED.format(tests=2, passes="number != 1"),
    )
    assert code == 1, said
    assert "--- failed, and run once more" in said
    assert named == []


def test_tests_of_one_engine_count_once_and_many_others_do_not_run_again(tmp_path):
    code, said, _ = outcome(tmp_path, test_a=GROUPED.format(tests=5, passes="False"))
    assert (code, said.count("--- failed, and run once more")) == (1, 1)
    several = "\n".join(FLAKY.format(name=f"test_flaky_{number}") for number in range(4))
    code, said, named = outcome(tmp_path, test_a=several)
    assert (code, said.count("--- failed, and run once more"), named) == (1, 0, [])


def test_what_passes_runs_once(tmp_path):
    code, said, named = outcome(tmp_path, test_a="def test_it():\n    pass\n")
    assert (code, said.count("1 passed"), named) == (0, 1, [])
