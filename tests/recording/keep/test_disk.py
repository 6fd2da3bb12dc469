"""Jobs for the disk's thread keep their order, are bounded, release their memory, and block nothing else."""

import gc
import json
import os
import sys
import threading
import time
import weakref
from functools import partial

import pytest
from awaited import wait_for

from sglang_instrument import flush, install, span, status, step, uninstall
from sglang_instrument.recording.keep.clock import Clock
from sglang_instrument.recording.keep.disk import Disk
from sglang_instrument.recording.keep.files import Files
from sglang_instrument.recording.measure.scopes import Scope
from sglang_instrument.recording.safety import notices

WAIT_SEC = 600


def lines_of(*numbers):
    return b"".join(b'{"event":"parse","number":%d}\n' % number for number in numbers)


def scope_of(number):
    return Scope("worker", 0, number, False)


def wait_for_jobs(disk):
    done = threading.Event()
    disk.do(done.set)
    assert done.wait(WAIT_SEC)


@pytest.fixture
def files(log_dir):
    return Files(log_dir, Clock(), {"run_id": "run"}, dict)


@pytest.fixture
def disk(files):
    before = threading.enumerate()  # a thread of an earlier test may be about to end
    disk = Disk(files, 2**20)
    disk.start()
    yield disk
    disk.do(files.close)
    disk.end()
    disk.join(time.monotonic() + WAIT_SEC)
    begun = [thread.name for thread in threading.enumerate() if thread not in before]
    assert "sglang_instrument-disk" not in begun


@pytest.fixture
def written(log_dir):
    """Return the numbers of the records in a step's file, and the names of its control records."""

    def read(number):
        lines = (log_dir / f"step_{number}" / "worker_0.jsonl").read_text().splitlines()
        return [record.get("number", record["event"]) for record in map(json.loads, lines)]

    return read


def test_jobs_run_in_order_in_whichever_thread(disk, written):
    seen, scope = [], scope_of(1)

    def look(expected):
        seen.append((expected, written(1)[1:]))

    for number in range(200):
        disk.write(scope, lines_of(number), 1)
        if number % 10 == 9:
            disk.do(partial(look, list(range(number + 1))))
    wait_for_jobs(disk)
    assert len(seen) == 20
    assert all(thread == expected for expected, thread in seen)


def test_waiting_lines_are_bounded_in_bytes_and_dropped_ones_are_counted(files, written):
    notices.forget()
    scope, line = scope_of(1), lines_of(0)
    disk = Disk(files, 3 * len(line))  # not started, like a hanging disk
    for _ in range(5):
        disk.write(scope, line, 1)
    assert (disk.dropped_records, scope.dropped) == (2, 2)
    assert len([said for said in notices.noticed() if "keep up" in said["notice"]]) == 1
    disk.start()
    wait_for_jobs(disk)
    for _ in range(3):  # finished jobs make room
        disk.write(scope, line, 1)
    disk.do(files.close)
    disk.end()
    disk.join(time.monotonic() + WAIT_SEC)
    assert disk.dropped_records == 2
    assert written(1) == ["log_opened", *[0] * 6, "log_closed"]


def test_records_are_counted_wherever_they_were_written(disk, files, written):
    scope = scope_of(1)
    for number in range(5):
        disk.write(scope, lines_of(number, number), 2)
    disk.do(partial(files.close_step, scope))
    disk.write(scope, lines_of(5), 1)
    disk.do(partial(files.close_step, scope))
    wait_for_jobs(disk)
    assert files.written_records == scope.written == 11
    assert written(1)[-3:] == ["step_closed", 5, "step_closed"]


def test_the_file_that_was_not_used_for_longest_is_closed_for_another_one(disk, written):
    scopes = [scope_of(number) for number in range(17)]
    for scope in scopes[:16]:
        disk.write(scope, lines_of(0), 1)
    wait_for_jobs(disk)
    for scope in scopes[:15]:  # all but the last one are used again
        disk.write(scope, lines_of(1), 1)
    disk.write(scopes[16], lines_of(0), 1)
    for scope in scopes[:16]:
        disk.write(scope, lines_of(2), 1)
    wait_for_jobs(disk)
    opened = {number: written(number).count("log_opened") for number in range(17)}
    assert opened == {number: 2 if number == 15 else 1 for number in range(17)}


def test_a_job_that_fails_costs_only_itself(disk, written, caplog):
    scope = scope_of(1)
    disk.write(scope, lines_of(0), 1)
    disk.do(lambda: 1 / 0)
    disk.write(scope, lines_of(1), 1)
    wait_for_jobs(disk)
    assert written(1) == ["log_opened", 0, 1]
    assert "ZeroDivisionError" in caplog.text


def test_written_lines_are_released(disk):
    class Job:
        def __call__(self):
            pass

    job, scope = Job(), scope_of(1)
    gone = weakref.ref(job)
    before = sys.getrefcount(scope)
    disk.do(job)
    for number in range(10):
        disk.write(scope, lines_of(number), 1)
    del job
    wait_for_jobs(disk)
    disk.do(int)
    wait_for_jobs(disk)
    assert gone() is None
    assert sys.getrefcount(scope) <= before + 3  # only the open file is kept, no written lines


def test_abandoned_jobs_keep_nothing_alive(log_dir):
    def abandoned():
        files = Files(log_dir, Clock(), {"run_id": "run"}, dict)
        disk = Disk(files, 2**20)
        disk.start()
        disk.write(scope_of(1), lines_of(0), 1)
        disk.do(files.close)
        disk.end()
        disk.do(files.describe_process)
        disk.join(time.monotonic() + WAIT_SEC)
        disk.do(files.describe_process)
        disk.write(scope_of(1), lines_of(1), 1)
        return weakref.ref(files)

    gone = abandoned()
    gc.collect()
    assert gone() is None


def test_jobs_that_never_run_keep_nothing_alive(log_dir):
    def ended():
        files = Files(log_dir, Clock(), {"run_id": "run"}, dict)
        disk = Disk(files, 2**20)
        disk.do(partial(id, disk))  # no later job replaces it
        return weakref.ref(files)

    files = ended()
    gc.collect()
    assert files() is None


def test_a_replaced_recorder_is_released(log_dir):
    def has_one_recorder():
        gc.collect()
        return sum(type(thing) is Files for thing in gc.get_objects()) == 1

    gc.collect()
    gc.freeze()  # what earlier tests left is not visited
    for _ in range(3):
        install(log_dir=str(log_dir), experiment="run", trainers="none")
        with step(1), span("parse"):
            pass
        assert flush(600)
        # The last tick of a replaced recorder's thread may still run.
        wait_for(has_one_recorder, "a replaced recorder is kept")
        uninstall()
    assert status()["installed"] is False


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_child_that_is_forked_while_lines_wait_has_none_of_them(run_script):
    forked = run_script(
        """
        import os
        import sglang_instrument

        sglang_instrument.install()
        for number in range(20):
            with sglang_instrument.step(1):
                for _ in range(200):
                    with sglang_instrument.span("parse", process=0):
                        pass
            child = os.fork()
            if child == 0:
                with sglang_instrument.step(1), sglang_instrument.span("parse", process=1):
                    pass
                sglang_instrument.uninstall()
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
        """
    )
    processes = [
        [record["extra"]["process"] for record in records if record["event"] == "parse"]
        for records in forked.records.values()
    ]
    assert sorted(processes) == [[0] * 4000, [1] * 20]  # one child lives at once
