"""No two processes write one file: the second one gets its own name, and reports it."""

import errno
import fcntl
import os
import socket

from logged import read_records

import sglang_instrument
from sglang_instrument import event, step
from sglang_instrument.recording.keep.file_locks import Claims
from sglang_instrument.recording.safety import notices

WRITES_UNTIL_TOLD = """
    import sglang_instrument as si
    si.install()
    with si.step(1):
        si.event("did")
        si.flush(600)
        print("wrote", flush=True)
        input()
"""


def own_name(pid):
    return f"worker_0.{socket.gethostname()}-{pid}"


def test_the_second_of_two_processes_of_one_worker_gets_its_own_file(start_script):
    first = start_script(WRITES_UNTIL_TOLD)
    first.says("wrote")
    second = start_script(WRITES_UNTIL_TOLD)
    second.says("wrote")
    first.tell("end")
    second.tell("end")
    assert "another process writes" not in first.wait().stderr
    assert second.wait().stderr.count("another process writes it") == 1
    other = own_name(second.process.pid)
    assert set(first.records) == {f"step_1/{other}.jsonl", "step_1/worker_0.jsonl"}
    for records in first.records.values():
        assert [record["event"] for record in records] == ["log_opened", "did", "step_closed", "log_closed"]
    described = {path.name for path in (first.folder / "processes").iterdir()}
    assert described == {f"{other}.json", "worker_0.json"}


def test_a_file_lock_ends_with_its_process_however_it_ends(start_script):
    killed = start_script(WRITES_UNTIL_TOLD)
    killed.says("wrote")
    killed.process.kill()
    killed.wait(code=-9)
    next_one = start_script(WRITES_UNTIL_TOLD)
    next_one.says("wrote")
    next_one.tell("end")
    next_one.wait()
    assert sorted(killed.records) == ["step_1/worker_0.jsonl"]
    events = [record["event"] for record in killed.records["step_1/worker_0.jsonl"]]
    assert events == ["log_opened", "did", "log_opened", "did", "step_closed", "log_closed"]


def test_uninstall_releases_the_file_lock_and_install_takes_it_again(install):
    for _ in range(2):
        folder = install()
        with step(1):
            event("did")
        sglang_instrument.uninstall()
    assert list(read_records(folder)) == ["step_1/worker_0.jsonl"]


def test_a_file_system_without_locks_gives_each_process_a_file_of_its_own(install, monkeypatch):
    def flock(descriptor, operation):  # the kernel's error on such file systems; a test cannot mount one
        raise OSError(errno.ENOTSUP, os.strerror(errno.ENOTSUP))

    monkeypatch.setattr(fcntl, "flock", flock)
    folder = install()
    for number in (1, 2):
        with step(number):
            event("did")
    sglang_instrument.uninstall()
    assert sorted(read_records(folder)) == [f"step_{n}/{own_name(os.getpid())}.jsonl" for n in (1, 2)]
    (notice,) = notices.noticed()
    assert notice["times"] == 1
    assert "locking failed" in notice["notice"]


def test_a_lock_file_that_cannot_be_made_gives_the_process_a_file_of_its_own(install, log_dir):
    (log_dir / "run" / ".locks" / "worker_0.lock").mkdir(parents=True)
    folder = install()
    with step(1):
        event("did")
    sglang_instrument.uninstall()
    assert list(read_records(folder)) == [f"step_1/{own_name(os.getpid())}.jsonl"]
    assert "the lock file cannot be opened" in notices.noticed()[0]["notice"]


def test_two_workers_of_one_process_have_two_file_locks(tmp_path):
    claims = Claims(tmp_path)
    assert claims.name("worker", 0) == "worker_0"
    assert claims.name("worker", 1) == "worker_1"
    assert claims.name("worker", 0) == "worker_0"
    assert Claims(tmp_path).name("worker", 1) == own_name(os.getpid()).replace("worker_0", "worker_1")
    claims.release()
    assert Claims(tmp_path).name("worker", 1) == "worker_1"
