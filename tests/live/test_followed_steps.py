"""What a follower keeps of several steps, runs and files."""

import gc
import os
import signal

import pytest
from live_writer import LiveRun

from sglang_instrument.live.counting.parts import WorkerPart
from sglang_instrument.live.follower import Follower
from sglang_instrument.live.terminal.details import request_lines


@pytest.fixture
def run(tmp_path):
    return LiveRun(tmp_path / "exp")


@pytest.fixture
def live(run):
    follower = Follower(run.folder, with_done=False)
    yield follower
    follower.stop()


def parts():
    """Return the parts of steps that this process remembers."""
    gc.collect()
    return [remembered for remembered in gc.get_objects() if type(remembered) is WorkerPart]


def test_requests_of_older_steps_are_forgotten(run, live):
    of_other_tests = parts()
    for step in range(12):
        file = run.open(step, 0, time_sec=step)
        for number in range(50):
            file.request(f"r{number}", time_sec=step + 0.5, duration_sec=0.1)
        file.close(step + 0.9)
        live.catch_up()
    part = [part for part in parts() if not any(part is other for other in of_other_tests)]
    assert sum(len(part.requests) for part in part) == 4 * 50
    assert live.snapshot().totals["worker", 0].requests == 12 * 50


def test_a_hang_in_an_older_step_that_goes_on_is_told(run, live):
    old, new = run.open(1, 0), run.open(2, 0, time_sec=1)
    old.request("fine", time_sec=2, duration_sec=1)
    spans = [{"event": "tool_execution", "request_id": "stuck", "turn": 0, "age_sec": 900, "stack": []}]
    old.control("open_spans", 900, spans=spans)
    for file in (old, new):
        file.open_now(901, {"tool_execution": 1}, [])
    snapshot = live.catch_up()
    assert snapshot.step.step == 2
    assert [(problem.kind, problem.step) for problem in snapshot.problems] == [("hang", 1)]
    assert snapshot.hangs


def test_a_file_that_vanishes_for_a_moment_is_not_counted_twice(run, live):
    file = run.open(1, 0)
    file.request("a", time_sec=2, duration_sec=1)
    live.catch_up()
    hidden = file.path.with_suffix(".hidden")
    file.path.rename(hidden)
    live.catch_up()
    hidden.rename(file.path)
    file.request("b", time_sec=4, duration_sec=1)
    assert live.catch_up().step.requests_done == 2
    step, moved = file.path.parent, run.folder / "moved"
    step.rename(moved)
    live.catch_up()
    moved.rename(step)
    file.request("c", time_sec=6, duration_sec=1)
    assert live.catch_up().step.requests_done == 3


def test_a_wanted_run_is_not_left_for_one_whose_name_begins_alike(tmp_path):
    wanted, other = (LiveRun(tmp_path / "exp", name) for name in ("job-1", "job-10"))
    wanted.open(1, 0).request("a", time_sec=2, duration_sec=1)
    other.open(2, 0, time_sec=5).request("b", time_sec=6, duration_sec=1)
    live = Follower(tmp_path / "exp", "job-1", with_done=False)
    snapshot = live.catch_up()
    live.stop()
    assert (snapshot.run_id, snapshot.step.step) == ("job-1", 1)


def test_two_runs_that_log_at_once_do_not_take_turns(tmp_path):
    first, second = LiveRun(tmp_path / "exp", "first"), LiveRun(tmp_path / "exp", "second")
    live = Follower(tmp_path / "exp", with_done=False)
    seen = []
    for step in range(4):
        first.open(step, 0, time_sec=2 * step)
        seen.append(live.catch_up().run_id)
        second.open(step, 1, time_sec=2 * step + 1)
        seen.append(live.catch_up().run_id)
    live.stop()
    assert seen == ["first", *["second"] * 7]


def test_a_role_that_was_ended_between_steps_is_not_dead(run, live):
    worker, reward = run.open(1, 0), run.open(1, 0, role="reward")
    run.process("worker_0", os.getpid())
    run.process("reward_0", _ended_process())
    worker.open_now(2, {"turn_end": 1}, [])
    reward.close(2)
    snapshot = live.catch_up()
    assert not snapshot.problems
    assert not snapshot.hangs


def test_a_request_whose_id_is_a_number_has_its_records(run, live):
    file = run.open(1, 0)
    file.span("tool_execution", 2, 1, request_id=17, turn=0)
    file.open_now(3, {"tool_execution": 1}, [{"event": "tool_execution", "request_id": 17, "age_sec": 2}])
    step = live.catch_up().step
    lines = "\n".join(request_lines(run.folder, step, step.oldest[0]))
    assert "tool_execution" in lines.partition("now:")[0]


def test_torn_lines_are_told(run, live):
    file = run.open(1, 0)
    file.raw('{"timestamp":"2026-01-01T00:00:00+00:00","event":"turn\n')
    file.open_now(3, {"tool_execution": 1}, [])
    assert [problem.sentence for problem in live.catch_up().problems] == ["torn lines in the log: 1"]


def _ended_process() -> int:
    pid = os.fork()
    if pid == 0:
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)
    return pid
