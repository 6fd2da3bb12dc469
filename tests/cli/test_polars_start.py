"""A command starts polars with one thread, and hands its settings to no other program."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sglang_instrument.testing import synthetic_run

PROGRAM = """
import os, sys
from sglang_instrument.cli.main import main
main(["summary", sys.argv[1]])
import polars
print(polars.thread_pool_size(), os.environ.get("POLARS_MAX_THREADS"))
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthetic_run(tmp_path_factory.mktemp("polars") / "exp", steps=1, workers=1, requests=2)


def last_line(folder: Path, **settings: str) -> str:
    others = {name: value for name, value in os.environ.items() if name != "POLARS_MAX_THREADS"}
    answer = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(folder)],
        env={**others, **settings},
        check=True,
        capture_output=True,
        text=True,
    )
    return answer.stdout.splitlines()[-1]


def test_polars_has_one_thread_and_the_environment_is_as_before(folder: Path) -> None:
    assert last_line(folder) == "1 None"


def test_the_users_number_of_threads_counts(folder: Path) -> None:
    assert last_line(folder, POLARS_MAX_THREADS="2") == "2 2"
