"""Nothing that the twin starts outlives it: after an error, a signal, or SIGKILL of the twin."""

import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

import pytest
from awaited import wait_for

from sglang_instrument.errors import InstrumentError
from sglang_instrument.twin.servers.launches import launched

#: A server whose child leaves its process group, and ignores SIGTERM, as engines' children do.
SERVER = """
import signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
child = subprocess.Popen([sys.executable, "-c", "import signal, time; "
    "signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(3600)"], start_new_session=True)
open(sys.argv[1], "w").write(f"{child.pid}\\n")
time.sleep(3600)
"""
KEEPER = Path(__file__).parents[2] / "sglang_instrument/twin/servers/keeper.py"
#: What starts a keeper, and holds the other end of its pipe.
TWIN = """
import subprocess, sys, time
subprocess.Popen([sys.executable, *sys.argv[1:]], stdin=subprocess.PIPE, start_new_session=True)
time.sleep(3600)
"""


def is_alive(process: int) -> bool:
    with suppress(FileNotFoundError, ProcessLookupError):
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    return False


def number_in(path: Path) -> int:
    wait_for(lambda: path.exists() and path.read_text().endswith("\n"), "the server did not start")
    return int(path.read_text())


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_all_processes_of_a_server_end_with_the_twin(number: int, tmp_path: Path) -> None:
    noted = tmp_path / "child"
    command = [sys.executable, "-c", TWIN, str(KEEPER), sys.executable, "-c", SERVER, str(noted)]
    twin = subprocess.Popen(command)
    child = number_in(noted)
    assert is_alive(child)
    os.kill(twin.pid, number)
    twin.wait()
    wait_for(lambda: not is_alive(child), "a process of the server is still alive")


def test_a_server_that_ends_is_told_with_its_last_words(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import sys; sys.exit('no model here')", "--device", "cpu"]
    ended = pytest.raises(
        InstrumentError, match=r"server 1 of 1 ended before it answered; .*at last: no model here"
    )
    with ended, launched(command, 1, {}, tmp_path / "printed"):
        pass


def test_a_program_that_is_not_there_is_told(tmp_path: Path) -> None:
    absent = pytest.raises(InstrumentError, match=r"no such program: 'no-such-python'")
    with absent, launched(["no-such-python", "--device=cpu"], 1, {}, tmp_path):
        pass


def test_several_servers_get_ports_of_their_own(tmp_path: Path) -> None:
    command = [sys.executable, "--device=cpu", "--port", "30000"]
    taken = pytest.raises(InstrumentError, match="leave --port out")
    with taken, launched(command, 2, {}, tmp_path):
        pass
