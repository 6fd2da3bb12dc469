"""The follower tells each step once it is whole, and ends with its driver."""

import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from awaited import lines_of
from hand_written import request, step_of, write_file

from sglang_instrument.live import __main__ as live
from sglang_instrument.live.analyst import Analyst, Question
from sglang_instrument.live.counting.counts import Counts
from sglang_instrument.live.counting.tail import Tail

ENDS_SEC = 600  # only a dead machine takes longer


def program(lock_sec=ENDS_SEC, yields=False):
    """Return a follower that waits so long for the lock of another one.

    It waits as long as it takes for the last step, and does not rest between analyses. It has the priority of
    any process, unless it yields: then, on a busy machine, it would hardly run.
    """
    return f"""
import sys
from sglang_instrument.live import __main__ as live, followed_run
followed_run._LONGEST_REST_SEC = 0.0
live._FINISH_SEC, live._LOCK_SEC = {ENDS_SEC}, {lock_sec}
if not {yields}:
    live.yield_to_training = lambda priority: None
sys.exit(live.main())
"""


def numbers_in(folder):
    path = folder / "live" / "scalars.jsonl"
    return [json.loads(line) for line in lines_of(path)]


def is_held(lock):
    """Return whether a follower holds the lock of a folder."""
    if not lock.exists():
        return False
    with lock.open("ab") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def has_open(process, path):
    """Return whether a process has opened a file, which stays open."""
    with contextlib.suppress(FileNotFoundError):  # another one was closed meanwhile
        return path in [file.readlink() for file in Path(f"/proc/{process.pid}/fd").iterdir()]
    return False


def wait_until(condition):
    ends = time.monotonic() + ENDS_SEC
    while not condition():
        assert time.monotonic() < ends, "it did not happen"
        time.sleep(0.02)


class Finds:
    """Finds finished steps as the follower does, with a clock of its own."""

    def __init__(self, folder, run_id=""):
        self.now, self.lines_of_steps = 100.0, {}
        self.tail = Tail(folder, clock=lambda: self.now)
        self.counts = Counts(run_id)

    def __call__(self, seconds=2.0):
        """Return the steps that are found in some seconds."""
        steps, ends = [], self.now + seconds
        while self.now < ends:
            try:
                for file, piece in self.tail.read():
                    self.counts.take(file, piece, self.now)
            except OSError:
                pass
            for (step, _), lines in self.counts.endings.finished(self.now):
                if self.lines_of_steps.get(step) != lines:
                    self.lines_of_steps[step] = lines
                    steps.append(step)
            self.now += 0.25
        return sorted(steps)


@pytest.fixture
def start():
    """Start a follower process; all end with the test."""
    processes = []

    def begin(folder, *options, **more):
        command = [sys.executable, "-c", program(**more), str(folder), *options]
        processes.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
        return processes[-1]

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


def test_a_step_is_found_once_all_of_its_workers_have_closed_it(tmp_path):
    write_file(tmp_path, 1, 0, step_of(request("a", 0, 4)))
    write_file(tmp_path, 1, 1, [request("b", 0, 4)], closed=False)
    find = Finds(tmp_path)
    assert find(5) == []
    write_file(tmp_path, 1, 1, step_of())
    assert find(5) == [1]
    assert find(5) == []


def test_a_worker_that_begins_late_delays_its_step(tmp_path):
    write_file(tmp_path, 1, 0, step_of(request("a", 0, 4)))
    find = Finds(tmp_path)
    assert find(0.5) == []
    write_file(tmp_path, 1, 1, [request("b", 0, 4)], closed=False)
    assert find(9) == []
    write_file(tmp_path, 1, 1, step_of())
    assert find() == [1]


def test_a_step_that_goes_on_is_found_again(tmp_path):
    write_file(tmp_path, 1, 0, step_of(request("a", 0, 4)))
    find = Finds(tmp_path)
    assert find() == [1]
    write_file(tmp_path, 1, 0, [request("b", 5, 9)])
    assert find(3) == [1]


def test_a_step_without_a_rollout_is_none_and_the_trainer_need_not_have_ended_one(tmp_path):
    write_file(tmp_path, 0, 0, step_of()).rename(tmp_path / "step_0" / "trainer_0.jsonl")
    find = Finds(tmp_path)
    assert find() == []
    unended = write_file(tmp_path, 1, 0, [request("a", 0, 4)], closed=False)
    unended.rename(tmp_path / "step_1" / "trainer_0.jsonl")
    write_file(tmp_path, 1, 0, step_of(request("a", 0, 4)))
    write_file(tmp_path, 2, 0, step_of(request("a", 0, 4))).rename(tmp_path / "step_2" / "mine_0.jsonl")
    assert find(3) == [1, 2]


def test_a_record_after_the_end_of_its_step_delays_it_only(tmp_path):
    path = write_file(tmp_path, 1, 0, step_of(request("a", 0, 4)))
    with path.open("a") as file:
        print('{"timestamp":"2026-01-05T08:00:00+00:00","event":"reward"}', file=file)
    find = Finds(tmp_path)
    assert find(3) == []
    assert find(3) == [1]


def test_what_an_earlier_run_closed_is_open_until_the_later_one_closes_it(tmp_path):
    write_file(tmp_path, 1, 0, step_of(request("a", 0, 4)), run_id="before")
    write_file(tmp_path, 1, 0, [request("b", 0, 4)], run_id="later", closed=False)
    find = Finds(tmp_path, "later")
    assert find(9) == []
    write_file(tmp_path, 1, 0, step_of(), run_id="later")
    assert find(3) == [1]


def test_a_run_that_resumes_below_the_steps_of_an_earlier_one_is_followed_at_once(tmp_path):
    for step in range(60):
        os.utime(write_file(tmp_path, step, 0, step_of(request("a", 0, 4)), run_id="before"), (1e9, 1e9))
    find = Finds(tmp_path, "now")
    assert find() == []
    for step in (12, 13, 14):
        write_file(tmp_path, step, 0, step_of(request("b", 0, 4)))
        assert find(4) == [step]


def test_more_steps_than_are_counted_may_be_in_progress(tmp_path):
    find = Finds(tmp_path)
    assert find(1) == []
    for step in range(1, 7):  # an asynchronous trainer
        write_file(tmp_path, step, 0, [request("a", step, step + 9)], closed=False)
        assert find(1) == []
    for step in range(1, 7):
        write_file(tmp_path, step, 0, [])
    assert find(4) == [1, 2, 3, 4, 5, 6]


def test_a_folder_that_is_missing_vanishes_or_holds_other_things_finds_nothing(tmp_path):
    assert Finds(tmp_path / "nowhere")() == []
    (tmp_path / "step_x").mkdir()
    (tmp_path / "step_3").mkdir()
    (tmp_path / "step_-1").mkdir()
    (tmp_path / "step_4").write_text("a file")
    os.mkfifo(tmp_path / "step_3" / "worker_0.jsonl")
    assert Finds(tmp_path)() == []


def test_the_follower_tells_steps_as_they_end_and_its_lines_name_the_run(tmp_path, start):
    write_file(tmp_path, 1, 0, step_of(request("a", 0, 4)))
    start(tmp_path)
    wait_until(lambda: len(numbers_in(tmp_path)) == 1)
    write_file(tmp_path, 2, 0, step_of(request("a", 0, 4), length=20))
    wait_until(lambda: len(numbers_in(tmp_path)) == 2)
    first, second = numbers_in(tmp_path)
    assert (first["run_id"], first["step"]) == ("now", 1)
    assert second["scalars"]["step_sec"] == 20


def test_a_follower_of_a_launch_tells_only_of_this_launch(tmp_path, start):
    write_file(tmp_path, 1, 0, step_of(request("a", 0, 4)), run_id="before")
    write_file(tmp_path, 2, 0, step_of(request("a", 0, 4)))
    start(tmp_path, "--run", "now")
    wait_until(lambda: numbers_in(tmp_path))
    assert [line["step"] for line in numbers_in(tmp_path)] == [2]


def test_the_follower_ends_when_its_driver_is_killed_and_the_next_one_takes_over(tmp_path, start):
    driver = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        first = start(tmp_path, "--driver", str(driver.pid))
        write_file(tmp_path, 1, 0, step_of(request("a", 0, 4)))
        wait_until(lambda: numbers_in(tmp_path))
        second = start(tmp_path)
        wait_until(lambda: has_open(second, tmp_path / "live" / "lock"))
        assert len(numbers_in(tmp_path)) == 1
        driver.send_signal(signal.SIGKILL)
        driver.wait()
        assert first.wait(ENDS_SEC) == 0
        wait_until(lambda: len(numbers_in(tmp_path)) == 2)  # told again: only readers know what was read
        assert second.poll() is None
    finally:
        driver.kill()
        driver.wait()


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="Linux has this class")
def test_a_follower_with_a_driver_runs_only_where_nothing_else_wants_to(tmp_path, start):
    follower = start(tmp_path, "--driver", str(os.getpid()), yields=True)
    wait_until(lambda: os.sched_getscheduler(follower.pid) == os.SCHED_IDLE)


def test_the_last_step_is_told_although_the_driver_ends_with_it(tmp_path, start):
    driver = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    follower = start(tmp_path, "--driver", str(driver.pid))
    write_file(tmp_path, 1, 0, step_of(request("a", 0, 4)))
    wait_until(lambda: numbers_in(tmp_path))
    write_file(tmp_path, 2, 0, step_of(request("a", 0, 4)))
    driver.kill()
    driver.wait()
    assert follower.wait(ENDS_SEC) == 0
    assert [line["step"] for line in numbers_in(tmp_path)] == [1, 2]


def test_a_second_follower_of_a_folder_gives_up(tmp_path, start):
    first = start(tmp_path)
    wait_until(lambda: is_held(tmp_path / "live" / "lock"))
    assert start(tmp_path, lock_sec=0.5).wait(ENDS_SEC) == 0
    assert first.poll() is None


def test_a_follower_that_is_killed_and_started_again_goes_on(tmp_path, start):
    first = start(tmp_path)
    write_file(tmp_path, 1, 0, step_of(request("a", 0, 4)))
    wait_until(lambda: numbers_in(tmp_path))
    first.kill()
    first.wait()
    with (tmp_path / "live" / "scalars.jsonl").open("ab") as file:
        file.write(b'{"run_id":"now","st')  # its last line was torn
    start(tmp_path)
    write_file(tmp_path, 2, 0, step_of(request("a", 0, 4)))
    lines = (tmp_path / "live" / "scalars.jsonl").read_bytes
    wait_until(lambda: any(line.startswith(b'{"run_id":"now","step":2,') for line in lines().splitlines()))


def test_a_folder_that_cannot_be_written_is_an_error_in_one_sentence(tmp_path, start):
    (tmp_path / "live").write_text("a file")
    process = start(tmp_path)
    _, errors = process.communicate(timeout=ENDS_SEC)
    assert process.returncode == 2
    assert errors.count("\n") == 1
    assert "live" in errors


def test_a_step_that_cannot_be_analysed_is_said_once_and_costs_no_other(tmp_path, monkeypatch, capsys):
    for step in (1, 2, 3):
        write_file(tmp_path, step, 0, step_of(request("a", 0, 4)))
    (tmp_path / "live").mkdir()
    ask = Analyst.ask

    def fail_for_two(analyst, question):
        analyst.failures |= {step: "not to be read" for step in question.steps if step != "step_3"}
        if "step_3" in question.steps:
            ask(analyst, Question({"step_3": []}))

    monkeypatch.setattr(Analyst, "ask", fail_for_two)
    live.follow(tmp_path, None, lambda: not any("step" in line for line in numbers_in(tmp_path)))
    # A late look finds both at once, and tells the numbers first.
    assert {line.get("step", line.get("failed")) for line in numbers_in(tmp_path)} == {"not to be read", 3}
    assert len(numbers_in(tmp_path)) == 2
    assert capsys.readouterr().err.count("not to be read") == 1


def test_a_full_disk_is_tried_again(tmp_path, monkeypatch):
    write_file(tmp_path, 1, 0, step_of(request("a", 0, 4)))
    (tmp_path / "live").mkdir()
    monkeypatch.setattr(live, "_AFTER_FAILURE_SEC", 0.1)
    append, tries = live._append, []

    def full_at_first(folder, line):
        tries.append(line)
        if len(tries) < 4:
            raise OSError(28, "No space left on device")
        append(folder, line)

    monkeypatch.setattr(live, "_append", full_at_first)
    live.follow(tmp_path, None, lambda: len(numbers_in(tmp_path)) == 0)
    assert numbers_in(tmp_path)[0]["step"] == 1
