"""The follower tells each step once it is whole, and ends with its driver."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hand_written import request, step_of, write_file

from sglang_instrument.live import __main__ as live
from sglang_instrument.live import finished_steps
from sglang_instrument.live.finished_steps import FinishedSteps

ENDS_SEC = 60  # on a busy machine


def told(folder):
    path = folder / "live" / "scalars.jsonl"
    return [json.loads(line) for line in path.read_bytes().splitlines()] if path.exists() else []


def wait_until(condition):
    ends = time.monotonic() + ENDS_SEC
    while not condition():
        assert time.monotonic() < ends, "it did not happen"
        time.sleep(0.02)


def looks(finished, seconds=0.7):
    """Return what several looks find, as the follower makes them."""
    ends, found = time.monotonic() + seconds, []
    while time.monotonic() < ends:
        found += finished.look()
        time.sleep(0.05)
    return found


@pytest.fixture
def start():
    """Start a follower process; all end with the test."""
    processes = []

    def begin(folder, *options):
        command = [sys.executable, "-m", "sglang_instrument.live", str(folder), *options]
        processes.append(subprocess.Popen(command, stderr=subprocess.PIPE, text=True))
        return processes[-1]

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


def test_a_step_is_found_once_all_of_its_workers_have_closed_it(tmp_path):
    write_file(tmp_path, 1, 0, step_of(request("a", 0, 4)))
    write_file(tmp_path, 1, 1, [request("b", 0, 4)], closed=False)
    finished = FinishedSteps(tmp_path)
    assert looks(finished) == []
    write_file(tmp_path, 1, 1, step_of())
    assert looks(finished) == [1]
    assert looks(finished) == []


def test_a_step_that_goes_on_is_found_again(tmp_path):
    write_file(tmp_path, 1, 0, step_of(request("a", 0, 4)))
    finished = FinishedSteps(tmp_path)
    assert looks(finished) == [1]
    write_file(tmp_path, 1, 0, [request("b", 5, 9)])
    assert looks(finished) == [1]


def test_a_step_without_a_rollout_is_none_and_the_trainer_need_not_have_ended_one(tmp_path):
    write_file(tmp_path, 0, 0, step_of()).rename(tmp_path / "step_0" / "trainer_0.jsonl")
    unended = write_file(tmp_path, 1, 0, [request("a", 0, 4)], closed=False)
    unended.rename(tmp_path / "step_1" / "trainer_0.jsonl")
    write_file(tmp_path, 1, 0, step_of(request("a", 0, 4)))
    write_file(tmp_path, 2, 0, step_of(request("a", 0, 4))).rename(tmp_path / "step_2" / "mine_0.jsonl")
    assert looks(FinishedSteps(tmp_path)) == [1, 2]


def test_a_record_after_the_end_of_its_step_delays_it_only(tmp_path, monkeypatch):
    monkeypatch.setattr(finished_steps, "_LATE_SEC", 0.6)
    path = write_file(tmp_path, 1, 0, step_of(request("a", 0, 4)))
    with path.open("a") as file:
        print('{"event":"reward"}', file=file)
    finished = FinishedSteps(tmp_path)
    assert looks(finished, 0.5) == []
    assert looks(finished) == [1]


def test_steps_of_an_earlier_run_are_left_alone_until_a_later_one_writes_there(tmp_path):
    path = write_file(tmp_path, 1, 0, step_of(request("a", 0, 4)))
    os.utime(path, (1e9, 1e9))
    finished = FinishedSteps(tmp_path, since_ns=int(1.5e18))
    assert looks(finished) == []
    write_file(tmp_path, 1, 0, step_of(request("b", 0, 4)))
    assert looks(finished) == [1]


def test_a_run_that_resumes_below_the_steps_of_an_earlier_one_is_followed_at_once(tmp_path):
    for step in range(60):
        os.utime(write_file(tmp_path, step, 0, step_of(request("a", 0, 4))), (1e9, 1e9))
    finished = FinishedSteps(tmp_path, since_ns=int(1.5e18))
    assert looks(finished) == []
    for step in (12, 13, 14):
        write_file(tmp_path, step, 0, step_of(request("b", 0, 4)))
        assert looks(finished) == [step]


def test_among_many_finished_steps_only_the_newest_are_looked_at_each_time(tmp_path, monkeypatch):
    for step in range(60):
        write_file(tmp_path, step, 0, step_of(request("a", 0, 4)))
    finished = FinishedSteps(tmp_path)
    assert sorted(looks(finished)) == list(range(60))
    seen = []
    sizes_of = finished_steps._sizes
    monkeypatch.setattr(
        finished_steps, "_sizes", lambda folder: (seen.append(folder.name), sizes_of(folder))[1]
    )
    finished.look()
    assert len(seen) <= 7
    for _ in range(50):
        finished.look()
    assert len(set(seen)) == 60


def test_a_folder_that_is_missing_vanishes_or_holds_other_things_finds_nothing(tmp_path):
    assert FinishedSteps(tmp_path / "nowhere").look() == []
    (tmp_path / "step_x").mkdir()
    (tmp_path / "step_3").mkdir()
    (tmp_path / "step_-1").mkdir()
    (tmp_path / "step_4").write_text("a file")
    os.mkfifo(tmp_path / "step_3" / "worker_0.jsonl")
    assert looks(FinishedSteps(tmp_path)) == []


def test_the_follower_tells_steps_as_they_end_and_its_lines_name_the_run(tmp_path, start):
    write_file(tmp_path, 1, 0, step_of(request("a", 0, 4)))
    start(tmp_path)
    wait_until(lambda: len(told(tmp_path)) == 1)
    write_file(tmp_path, 2, 0, step_of(request("a", 0, 4), length=20))
    wait_until(lambda: len(told(tmp_path)) == 2)
    first, second = told(tmp_path)
    assert (first["run_id"], first["step"]) == ("now", 1)
    assert second["scalars"]["step_sec"] == 20


def test_a_follower_of_a_launch_tells_only_of_this_launch(tmp_path, start):
    write_file(tmp_path, 1, 0, step_of(request("a", 0, 4)), run_id="before")
    write_file(tmp_path, 2, 0, step_of(request("a", 0, 4)))
    start(tmp_path, "--run", "now")
    wait_until(lambda: told(tmp_path))
    assert [line["step"] for line in told(tmp_path)] == [2]


def test_the_follower_ends_when_its_driver_is_killed_and_the_next_one_takes_over(tmp_path, start):
    driver = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        first = start(tmp_path, "--driver", str(driver.pid))
        write_file(tmp_path, 1, 0, step_of(request("a", 0, 4)))
        wait_until(lambda: told(tmp_path))
        second = start(tmp_path)
        time.sleep(1)
        assert len(told(tmp_path)) == 1
        driver.send_signal(signal.SIGKILL)
        driver.wait()
        assert first.wait(ENDS_SEC) == 0
        wait_until(lambda: len(told(tmp_path)) == 2)  # told again: only readers know what was read
        assert second.poll() is None
    finally:
        driver.kill()
        driver.wait()


def test_a_second_follower_of_a_folder_gives_up(tmp_path, start):
    first = start(tmp_path)
    wait_until((tmp_path / "live" / "lock").exists)
    time.sleep(1)
    assert start(tmp_path).wait(ENDS_SEC) == 0
    assert first.poll() is None


def test_a_follower_that_is_killed_and_started_again_goes_on(tmp_path, start):
    first = start(tmp_path)
    write_file(tmp_path, 1, 0, step_of(request("a", 0, 4)))
    wait_until(lambda: told(tmp_path))
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


def test_a_step_that_cannot_be_read_is_said_once_and_costs_no_other(tmp_path, monkeypatch, capsys):
    for step in (1, 2, 3):
        write_file(tmp_path, step, 0, step_of(request("a", 0, 4)))
    (tmp_path / "live").mkdir()
    rounds = iter([True] * 10)
    tell = live._tell

    def fail_for_two(folder, step, run_id):
        if step < 3:
            raise ValueError("not to be read")
        tell(folder, step, run_id)

    monkeypatch.setattr(live, "_tell", fail_for_two)
    live.follow(Path(tmp_path), None, lambda: next(rounds, False))
    assert [line.get("step", line.get("failed")) for line in told(tmp_path)] == [
        "ValueError('not to be read')",
        3,
    ]
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
    live.follow(Path(tmp_path), None, lambda: len(told(tmp_path)) == 0)
    assert told(tmp_path)[0]["step"] == 1
