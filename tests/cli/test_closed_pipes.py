"""A command whose reader stops before the end, as `| head` does, ends with 0 and without a message."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sglang_instrument.testing import synthetic_run

COMMANDS = {
    "a table": ["events", "LOGS"],
    "tables and lines": ["summary", "LOGS"],
    "JSON": ["requests", "LOGS", "--json"],
    "a page": ["patches", "list"],
    "help": ["--help"],
    "help of a command": ["summary", "--help"],
    "the version": ["--version"],
}


@pytest.fixture(scope="module")
def logs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return synthetic_run(tmp_path_factory.mktemp("logs") / "exp", steps=2, workers=2, requests=4)


@pytest.mark.parametrize("what", COMMANDS)
def test_a_closed_pipe_ends_a_command_well(what: str, logs: Path) -> None:
    arguments = [str(logs) if word == "LOGS" else word for word in COMMANDS[what]]
    # Without PYTHONUNBUFFERED, short output is written when Python exits.
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    read_end, write_end = os.pipe()
    os.close(read_end)
    try:
        ended = subprocess.run(
            [sys.executable, "-m", "sglang_instrument.cli.main", *arguments],
            stdout=write_end,
            stderr=subprocess.PIPE,
            env=environment,
            text=True,
            check=False,
        )
    finally:
        os.close(write_end)
    assert (ended.returncode, ended.stderr) == (0, "")
