"""The follower tells what a run does while it does it: where its requests are, and who waits for whom."""

import json
import os
import subprocess
import sys
import threading
import time

import pytest
from live_writer import LiveFile, LiveRun, Replay

from sglang_instrument.errors import LogError
from sglang_instrument.live import followed_run, follower
from sglang_instrument.live.counting import tail
from sglang_instrument.live.counting.engine_calls import CallIds, EngineCalls
from sglang_instrument.live.followed_run import FollowedRun
from sglang_instrument.live.follower import Follower
from sglang_instrument.live.state import as_json
from sglang_instrument.testing import SlowEngine, synthetic_run

BUSY_SEC = 600  # for so long may a thread be kept waiting: only a dead machine takes longer


def wait_until(live, condition):
    """Wait until a condition holds for the follower's newest snapshot."""
    ends = time.monotonic() + BUSY_SEC
    while not condition(live.snapshot()):
        assert time.monotonic() < ends, live.snapshot()
        time.sleep(0.05)


@pytest.fixture
def run(tmp_path):
    return LiveRun(tmp_path / "exp")


@pytest.fixture
def follow():
    """Return what a follower without a thread says of some logs; each call reads on."""
    followers = {}

    def read(logs, with_done=False):
        reader = followers.setdefault(logs, None) or Follower(logs, with_done=with_done)
        followers[logs] = reader
        return reader.catch_up()

    yield read
    for reader in followers.values():
        reader.stop()


def dead_pid():
    return int(
        subprocess.run([sys.executable, "-c", "import os; print(os.getpid())"], capture_output=True).stdout
    )


def test_a_step_in_progress_is_counted(run, follow):
    first, second = run.open(1, 0), run.open(1, 1)
    for number in range(4):
        first.request(f"a{number}", time_sec=10, duration_sec=9, tokens=100)
    first.control("request_start", 2, request_id="a9")
    second.request("b0", time_sec=5, duration_sec=3)
    step = follow(run.folder).step
    assert (step.step, step.validate, step.requests_done, step.requests_open) == (1, False, 5, 1)
    assert step.tokens == 410
    assert 8 < step.age_sec < 10 + BUSY_SEC
    assert step.requests_expected is None
    assert [(request.request_id, request.worker) for request in step.oldest] == [("a9", 0)]
    first.request("a9", time_sec=11, duration_sec=9)
    step = follow(run.folder).step
    assert (step.requests_done, step.requests_open) == (6, 0)


def test_open_now_says_where_the_requests_are(run, follow):
    file = run.open(1, 0)
    oldest = [{"event": "tool_execution", "request_id": "r0", "turn": 1, "age_sec": 7.5}]
    file.control("turn_start", 1, request_id="r0", turn=0)
    file.span("turn_engine_call", 3, 2, request_id="r0", turn=0, generated_tokens=33)
    file.open_now(8.0, {"turn_end": 5, "tool_execution": 2, "reward_calculation": 1}, oldest)
    snapshot = follow(run.folder)
    assert snapshot.step.open == {"engine": 5, "tool": 2, "reward": 1}
    assert snapshot.step.requests_open == 8
    request = snapshot.step.oldest[0]
    assert (request.request_id, request.turn, request.event, request.tokens) == (
        "r0",
        1,
        "tool_execution",
        33,
    )
    assert 7.5 <= request.age_sec < 7.5 + BUSY_SEC
    assert snapshot.workers[0].open == {"engine": 5, "tool": 2, "reward": 1}


def test_open_now_is_forgotten_when_all_that_it_named_ended(run, follow):
    file = run.open(1, 0)
    file.open_now(1.0, {"turn_end": 2}, [])
    assert follow(run.folder).step.requests_open == 2
    file.request("r0", time_sec=2, duration_sec=2)
    file.request("r1", time_sec=2, duration_sec=2)
    file.span("sorting_duration", 20, 0.1)
    step = follow(run.folder).step
    assert (step.requests_open, step.open) == (0, {})


def test_workers_in_a_barrier_wait_for_the_one_that_is_late(run, follow):
    files = [run.open(1, rank) for rank in range(3)]
    files[0].open_now(5.0, {}, [], barrier_wait_duration=1)
    files[1].open_now(5.0, {"turn_end": 3}, [])
    files[2].close(5.0)
    workers = {worker.worker: worker for worker in follow(run.folder).workers}
    assert [workers[rank].state for rank in range(3)] == ["waits", "runs", "waits"]
    assert [workers[rank].waits_for for rank in range(3)] == [1, None, 1]
    assert workers[0].open == {"barrier": 1}


def test_a_tool_that_does_not_end_hangs(run, follow):
    file = run.open(1, 3)
    file.span("tool_execution", 5, 4, request_id="r1", turn=0)
    file.control(
        "open_spans",
        40,
        open=2,
        spans=[
            {"event": "async_rollout_request_complete", "request_id": "r17", "age_sec": 39, "stack": []},
            {
                "event": "tool_execution",
                "request_id": "r17",
                "turn": 2,
                "age_sec": 35,
                "stack": ["a.py:1 f", "b.py:2 g"],
            },
        ],
    )
    snapshot = follow(run.folder)
    assert snapshot.hangs
    (problem,) = snapshot.problems
    assert (problem.kind, problem.worker, problem.step) == ("hang", 3, 1)
    sentence = (
        "tool_execution of request r17, turn 3 does not end, at b.py:2 g; the longest before took 4.0 s"
    )
    assert problem.sentence == f"worker 3: {sentence}"
    assert snapshot.workers[0].state == "hangs"
    file.span("tool_execution", 41, 36, request_id="r17", turn=2)
    snapshot = follow(run.folder)
    assert not snapshot.problems
    assert snapshot.workers[0].state == "runs"


def test_a_long_request_is_no_hang(run, follow):
    file = run.open(1, 0)
    file.request("r0", time_sec=60, duration_sec=59)
    file.control(
        "open_spans",
        70,
        open=1,
        spans=[
            {"event": "async_rollout_request_complete", "request_id": "r1", "age_sec": 69, "stack": []},
        ],
    )
    file.open_now(70, {"turn_end": 1}, [{"event": "turn_end", "request_id": "r1", "age_sec": 69}])
    assert not follow(run.folder).problems


def test_a_request_far_older_than_all_that_ended_hangs(run, follow):
    run.open(1, 0).request("r0", time_sec=20, duration_sec=19)
    file = run.open(2, 0, time_sec=30)
    old = {"event": "turn_end", "request_id": "r1", "turn": 0, "age_sec": 59}
    file.open_now(90, {"turn_end": 1}, [old])
    assert not follow(run.folder).problems  # long requests end last: the first step says nothing of them
    run.open(1, 0, time_sec=29).close(29)
    (problem,) = follow(run.folder).problems
    assert problem.kind == "hang"
    assert "request r1" in problem.sentence


def test_all_workers_in_a_barrier_are_stuck(run, follow):
    for rank in range(2):
        stuck = [{"event": "barrier_wait_duration", "age_sec": 90, "stack": []}]
        run.open(1, rank).control("open_spans", 100, open=1, spans=stuck)
    (problem,) = follow(run.folder).problems
    assert problem.sentence == "all 2 workers wait at a barrier"


def test_a_process_that_is_gone_in_the_middle_of_a_step_died(run, follow):
    run.process("worker_0", os.getpid())
    run.process("worker_1", dead_pid())
    run.open(1, 0).request("a", time_sec=2, duration_sec=1)
    run.open(1, 1).open_now(2.0, {"turn_end": 7}, [])
    snapshot = follow(run.folder)
    assert snapshot.ended is None
    assert [(worker.worker, worker.state) for worker in snapshot.workers] == [(0, "runs"), (1, "dead")]
    (problem,) = snapshot.problems
    assert problem.kind == "death"
    assert problem.sentence == "worker 1: the process has ended with 7 requests open"


def test_a_process_on_another_host_that_falls_silent_with_requests_open_died(run, follow):
    begun = time.time() - 300
    run.process("worker_0", 17, host="elsewhere")
    run.process("worker_1", 17, host="elsewhere")
    run.open(1, 0).open_now(2.0, {"turn_end": 7}, [])
    run.open(1, 1).open_now(2.0, {"turn_end": 7}, [])
    os.utime(run.folder / "step_1" / "worker_1.jsonl", (begun, begun))
    snapshot = follow(run.folder)
    assert [worker.state for worker in snapshot.workers] == ["runs", "dead"]
    assert 300 <= snapshot.workers[1].silent_sec < 300 + BUSY_SEC
    assert "writes no more" in snapshot.problems[0].sentence


def test_a_run_that_ended_says_so(run, follow):
    run.process("worker_0", dead_pid(), log_closed=True)
    file = run.open(1, 0)
    file.request("a", time_sec=2, duration_sec=1)
    file.close(3)
    file.control("log_closed", 4)
    snapshot = follow(run.folder)
    assert snapshot.ended == "all processes of the run have ended"
    assert not snapshot.problems
    assert snapshot.step.is_over
    assert snapshot.workers[0].state == "ended"


def test_a_run_that_was_killed_ended_with_deaths(run, follow):
    for rank in range(5):
        run.process(f"worker_{rank}", dead_pid())
        run.open(1, rank).open_now(2.0, {"turn_end": 7}, [])
    snapshot = follow(run.folder)
    assert snapshot.ended
    (problem,) = snapshot.problems
    assert problem.sentence.startswith(
        "5 processes ended and did not close their logs: worker 0, worker 1, worker 2"
    )


def test_lost_records_are_told(run, follow):
    file = run.open(1, 0)
    file.close(3, dropped=12)
    file.close(4, dropped=15)
    snapshot = follow(run.folder)
    assert [problem.sentence for problem in snapshot.problems] == ["worker 0: 15 records were lost"]
    assert not snapshot.hangs
    assert snapshot.totals["worker", 0].lost_records == 15


def test_totals_only_grow(run, follow):
    file = run.open(1, 0)
    file.request("a", time_sec=2, duration_sec=1.5)
    file.span("async_rollout_request_complete", 3, 2, request_id="b", error="ValueError")
    counted = follow(run.folder).totals["worker", 0]
    assert (counted.requests, counted.failed_requests, counted.tokens) == (2, 1, 10)
    assert counted.events["async_rollout_request_complete", "request"] == (2, 3.5)
    assert counted.events["request_start", "request"] == (1, 0.0)
    file.close(4)
    run.open(2, 0).request("c", time_sec=6, duration_sec=1)
    counted = follow(run.folder).totals["worker", 0]
    assert counted.requests == 3
    assert counted.events["async_rollout_request_complete", "request"] == (3, 4.5)


def test_tokens_of_nested_calls_count_once(run, follow):
    file = run.open(1, 0)
    for event in ("engine_generate", "turn_engine_call"):
        file.span(event, 2, 1, request_id="a", turn=0, completion_tokens=50)
    file.span("async_rollout_request_complete", 3, 2, request_id="a", actual_response_tokens=50)
    assert follow(run.folder).step.tokens == 50


def test_finished_steps_have_the_numbers_of_summary(tmp_path, follow, capsys):
    from sglang_instrument.cli.main import main

    logs = synthetic_run(
        tmp_path / "exp", steps=4, workers=3, requests=8, causes=[SlowEngine(3, 1, factor=4.0)]
    )
    done = follow(logs, with_done=True).done
    assert main(["summary", str(logs), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert [step.step for step in done] == [row["step"] for row in summary["steps"]]
    for step, row in zip(done, summary["steps"], strict=True):
        assert (step.requests, step.tokens) == (row["requests"], row["response_tokens"])
        assert step.duration_sec == pytest.approx(row["duration_sec"])
        assert (step.p50_sec, step.p99_sec) == pytest.approx((row["p50_sec"], row["p99_sec"]))
        spent = {}
        for part in summary["ledger"]["steps"]:
            if part["step"] == step.step:
                spent[part["part"]] = spent.get(part["part"], 0.0) + part["sec"]
        assert step.ledger == pytest.approx(spent, abs=0.02)
    assert done[2].straggler == 1


def test_a_run_written_bit_by_bit_gives_what_the_whole_gives(tmp_path, follow):
    whole = synthetic_run(tmp_path / "whole", steps=3, workers=2, requests=6, validate_every=2)
    replay = Replay(whole, tmp_path / "live")
    live = Follower(tmp_path / "live")
    replay.write(100)
    while replay.write(57):
        live.round()
        live._run.tail.hurry()
    now, then = live.catch_up(), follow(whole, with_done=True)
    live.stop()
    assert now.step.step == then.step.step == 3
    assert (now.step.requests_done, now.step.is_over) == (12, True)
    assert [step.requests for step in now.done] == [step.requests for step in then.done]
    assert now.totals["worker", 0].requests == 18
    assert {step.step for step in now.done if step.validate} == {2}


def test_it_waits_for_a_run_that_is_not_there_yet(tmp_path, follow):
    logs = tmp_path / "logs"
    assert follow(logs).waiting == f"{logs}: no such folder yet"
    logs.mkdir()
    assert follow(logs).waiting == f"{logs}: no run in it yet"
    run = LiveRun(logs / "exp")
    (run.folder / "step_1").mkdir(parents=True)
    assert follow(logs).waiting == f"{run.folder}: no records yet"
    run.open(1, 0).request("a", time_sec=2, duration_sec=1)
    snapshot = follow(logs)
    assert snapshot.waiting is None
    assert snapshot.step.requests_done == 1


def test_of_a_folder_of_runs_it_follows_the_newest(tmp_path, follow, monkeypatch):
    monkeypatch.setattr(followed_run, "_QUIET_SEC", 0.0)
    old, new = LiveRun(tmp_path / "old"), LiveRun(tmp_path / "new")
    old.open(1, 0).request("a", time_sec=2, duration_sec=1)
    assert follow(tmp_path).logs == str(old.folder)
    os.utime(old.folder / "step_1", (1e9, 1e9))
    new.open(5, 0).request("a", time_sec=2, duration_sec=1)
    snapshot = follow(tmp_path)
    assert (snapshot.logs, snapshot.step.step) == (str(new.folder), 5)


def test_a_restarted_run_begins_anew(tmp_path, follow):
    first = LiveRun(tmp_path / "exp", "run-1")
    for step in (1, 2, 3):
        first.open(step, 0, time_sec=step * 10).request("a", time_sec=step * 10 + 2, duration_sec=1)
    assert follow(first.folder).step.step == 3
    second = LiveRun(tmp_path / "exp", "run-2", begin_us=first.begin_us + 100_000_000)
    second.open(2, 0).request("b", time_sec=2, duration_sec=1)
    snapshot = follow(first.folder)
    assert (snapshot.run_id, snapshot.step.step, snapshot.step.requests_done) == ("run-2", 2, 1)
    assert [worker.step for worker in snapshot.workers] == [2]
    first.open(3, 0, time_sec=50).request("late", time_sec=51, duration_sec=1)
    assert follow(first.folder).step.requests_done == 1


def test_steps_that_a_restarted_run_does_again_are_no_longer_finished(tmp_path, follow):
    logs = synthetic_run(tmp_path / "exp", steps=3, workers=2, requests=3)
    assert [step.step for step in follow(logs, with_done=True).done] == [1, 2, 3]
    LiveRun(logs, "run-2").open(2, 0).request("b", time_sec=2, duration_sec=1)
    snapshot = follow(logs, with_done=True)
    assert snapshot.run_id == "run-2"
    assert [step.step for step in snapshot.done] == [1]


def test_a_follower_that_is_started_again_tells_the_same(run, follow):
    file = run.open(1, 0)
    file.request("a", time_sec=2, duration_sec=1)
    run.open(2, 0, time_sec=10).request("b", time_sec=12, duration_sec=1)
    first, again = follow(run.folder), Follower(run.folder, with_done=False)
    second = again.catch_up()
    assert (first.step.step, first.step.requests_done) == (second.step.step, second.step.requests_done)
    assert {key: counters.requests for key, counters in first.totals.items()} == {
        key: counters.requests for key, counters in second.totals.items()
    }


def test_a_folder_that_vanishes_is_waited_for(run, follow):
    run.open(1, 0).request("a", time_sec=2, duration_sec=1)
    follow(run.folder)
    run.folder.rename(run.folder.with_name("moved"))
    assert follow(run.folder).waiting == f"{run.folder}: no such folder yet"
    run.folder.with_name("moved").rename(run.folder)
    assert follow(run.folder).step.requests_done == 1


def test_clocks_that_jump_move_no_age(run, follow, monkeypatch):
    file = run.open(1, 0)
    file.request("a", time_sec=2, duration_sec=1)
    file.control("request_start", 2, request_id="b")
    age_sec = follow(run.folder).step.age_sec
    for jump_sec in (-7200, 7200):
        real = time.time
        monkeypatch.setattr(time, "time", lambda real=real, jump_sec=jump_sec: real() + jump_sec)
        snapshot = follow(run.folder)
        assert age_sec <= snapshot.step.age_sec < age_sec + BUSY_SEC
        assert snapshot.ended is None
        assert snapshot.step.oldest[0].age_sec < BUSY_SEC
        monkeypatch.undo()


def test_a_disk_that_hangs_is_told_once(run, follow, monkeypatch):
    file, returns = run.open(1, 0), threading.Event()
    file.request("a", time_sec=2, duration_sec=1)
    monkeypatch.setattr(follower, "_HANGS_SEC", 0.2)
    monkeypatch.setattr(follower, "_ROUND_SEC", 0.05)
    live = Follower(run.folder, with_done=False)
    live.start()
    wait_until(live, lambda now: now.step is not None and now.step.requests_done == 1)
    opening, real = threading.Event(), tail.open_regular

    def hangs(path):
        opening.set()
        returns.wait()
        return real(path)

    monkeypatch.setattr(tail, "open_regular", hangs)
    file.request("b", time_sec=3, duration_sec=1)
    assert opening.wait(BUSY_SEC)
    wait_until(live, lambda now: now.problems)
    for _ in range(3):
        (problem,) = live.snapshot().problems
        assert problem.kind == "follower"
        assert "its disk hangs" in problem.sentence
    assert live.snapshot().step.requests_done == 1
    returns.set()
    wait_until(live, lambda now: now.step.requests_done == 2 and not now.problems)
    live.stop()


def test_a_round_that_computes_for_long_is_not_a_disk_that_hangs(run, monkeypatch):
    run.open(1, 0).request("a", time_sec=2, duration_sec=1)
    monkeypatch.setattr(follower, "_HANGS_SEC", 0.1)
    real = FollowedRun.read

    def computes(self, now):
        ends = time.thread_time() + 0.3
        while time.thread_time() < ends:
            pass
        return real(self, now)

    monkeypatch.setattr(FollowedRun, "read", computes)
    assert Follower(run.folder, with_done=False).catch_up().step.requests_done == 1


def test_a_disk_that_hangs_ends_a_single_look(run, monkeypatch):
    returns = threading.Event()
    run.open(1, 0).request("a", time_sec=2, duration_sec=1)
    monkeypatch.setattr(follower, "_HANGS_SEC", 0.2)
    monkeypatch.setattr(tail, "open_regular", lambda path: returns.wait() and None)
    with pytest.raises(LogError, match="its disk hangs"):
        Follower(run.folder, with_done=False).catch_up()
    returns.set()


def test_hostile_names_are_plain_in_a_snapshot(run, follow):
    file = run.open(1, 0)
    file.span("\x1b]0;x\x07", 2, 1, request_id="r\x1b[2J")
    file.control("turn_start", 1, request_id="r\x1b[2J", turn=0)
    file.control("open_now", 3.5, open="x", requests=[1], phases=3, oldest=[{"age_sec": "x"}, 7])
    file.control(
        "open_now", 3.6, open={}, requests={}, oldest=[{"age_sec": 1e6, "turn": "x", "event": ["y"]}]
    )
    file.control("open_spans", 3.5, open=1, spans=[{"age_sec": 1e300}, {"event": ["x"], "age_sec": 3}, "x"])
    file.open_now(3.0, {"\x1b[0m": 1}, [{"event": "\x1b[31m", "request_id": "r\x1b[2J", "age_sec": 3}])
    text = json.dumps(as_json(follow(run.folder)), ensure_ascii=False)
    assert "\x1b" not in text
    assert "r\\\\x1b[2J" in text


def test_records_outside_of_steps_are_no_step(run, follow):
    run.open(0, 0, step_bound=False).request("a", time_sec=2, duration_sec=1)
    snapshot = follow(run.folder)
    assert snapshot.step is None
    assert snapshot.totals["worker", 0].records == 3


def test_a_step_in_progress_has_a_forecast_once_one_has_ended(tmp_path):
    whole = synthetic_run(tmp_path / "whole", steps=4, workers=2, requests=24)
    replay, live = Replay(whole, tmp_path / "live"), Follower(tmp_path / "live", with_done=False)
    total, seen = len(replay), []
    for _ in range(20):
        replay.write(total // 20)
        seen.append(live.catch_up().step)
    first = [step for step in seen if step.step == 1]
    later = [step for step in seen if step.step > 1 and not step.is_over]
    assert all(step.forecast is None for step in first)
    assert later
    assert all(step.forecast is not None for step in later)
    for step in later:
        assert 0 <= step.forecast.low_sec <= step.forecast.high_sec < 600
        if step.requests_open:
            worker, name = step.forecast.decides
            assert name.startswith(f"{step.step}-{worker}-")
    live.stop()


def test_a_request_that_the_forecast_gives_up_hangs(run, follow):
    for step in (1, 2, 3):
        file = run.open(step, 0, time_sec=step * 20)
        for number in range(6):
            file.span("tool_execution", step * 20 + 4, 3 + number / 9, request_id=f"{step}-{number}", turn=0)
            file.request(f"{step}-{number}", time_sec=step * 20 + 5 + number, duration_sec=4 + number)
        file.close(step * 20 + 12)
    file = run.open(4, 0, time_sec=80)
    file.span("tool_execution", 84, 3, request_id="4-0", turn=0)
    stuck = {"event": "tool_execution", "request_id": "r9", "turn": 0, "age_sec": 10.9, "stack": []}
    file.control("open_spans", 91, open=1, spans=[stuck])
    file.control("turn_start", 80.1, request_id="r9", turn=0)
    snapshot = follow(run.folder)
    assert snapshot.step.forecast.will_not_end == ((0, "r9"),)
    assert [problem.sentence for problem in snapshot.problems if "r9" in problem.sentence]
    assert snapshot.workers[0].state == "hangs"


def test_a_tool_that_left_the_range_is_named_by_what_its_worker_says_every_two_seconds(run, follow):
    for step in (1, 2, 3):
        file = run.open(step, 0, time_sec=step * 20)
        for number in range(6):
            begun = step * 20 + number / 2
            file.span("tool_execution", begun + 1, 1, request_id=f"{step}-{number}", turn=0, tool="search")
            file.request(f"{step}-{number}", time_sec=begun + 3, duration_sec=3)
        file.close(step * 20 + 12)
    file = run.open(4, 0, time_sec=80)
    said = {"event": "tool_execution", "request_id": "r9", "turn": 0, "tool": "search", "age_sec": 5.0}
    file.open_now(85, {"tool_execution": 1}, [{**said, "in_sec": 4.0}])
    assert follow(run.folder).step.forecast.will_not_end == ()
    file.open_now(89, {"tool_execution": 1}, [{**said, "age_sec": 9.0, "in_sec": 8.0}])
    snapshot = follow(run.folder)
    assert snapshot.step.forecast.will_not_end == ((0, "r9"),)
    (problem,) = snapshot.problems
    assert "request r9 is open in tool_execution search for longer" in problem.sentence


def test_a_tool_that_never_ended_before_is_judged_by_its_request(run, follow):
    for step in (1, 2, 3):
        file = run.open(step, 0, time_sec=step * 20)
        file.span("tool_execution", step * 20 + 1, 1, request_id=f"{step}-0", turn=0, tool="search")
        file.request(f"{step}-0", time_sec=step * 20 + 6, duration_sec=5)
        file.close(step * 20 + 12)
    file = run.open(4, 0, time_sec=80)
    new = {"event": "tool_execution", "request_id": "r9", "turn": 0, "tool": "python"}
    file.open_now(89, {"tool_execution": 1}, [{**new, "age_sec": 9.0, "in_sec": 8.0}])
    assert follow(run.folder).step.forecast.will_not_end == ()
    file.open_now(98, {"tool_execution": 1}, [{**new, "age_sec": 18.0, "in_sec": 17.0}])
    assert follow(run.folder).step.forecast.will_not_end == ((0, "r9"),)


def test_what_a_silent_worker_said_last_gets_no_older(run, follow, monkeypatch):
    for step in (1, 2, 3):
        file = run.open(step, 0, time_sec=step * 20)
        file.request(f"{step}-0", time_sec=step * 20 + 10, duration_sec=10)
        file.close(step * 20 + 12)
    file = run.open(4, 0, time_sec=80)
    said = {"event": "turn_end", "request_id": "r9", "turn": 0, "age_sec": 9.0}
    file.open_now(89, {"turn_end": 1}, [said])
    assert follow(run.folder).problems == ()
    clock = time.monotonic
    monkeypatch.setattr(follower.time, "monotonic", lambda: clock() + 25)  # its file server is slow
    assert follow(run.folder).problems == ()


def test_requests_in_the_engine_are_where_its_scheduler_has_them(run):
    worker = run.open(1, 0)
    scheduler = LiveFile(run, run.folder / "engine" / "scheduler_0_tp0.jsonl", 1, 0)
    scheduler.control("log_opened", 0, log_version=1, run_id=run.run_id, pid=2)
    calls = [f"call-{number}" for number in range(8)]
    for rid in calls:
        scheduler.span("scheduler_receive", 1, 0.001, rid=rid)
    scheduler.span("scheduler_admit", 2, 0.001, rids=calls[:6])
    scheduler.span("scheduler_first_tokens", 3, 0.001, rids=calls[:5])
    scheduler.span("scheduler_retract", 4, 0.001, rids=calls[4:5])
    worker.span("engine_request", 5, 3, rid=calls[0])
    worker.open_now(6, {"turn_end": 9, "tool_execution": 2}, [])
    live = Follower(run.folder, with_done=False)
    # 3 decode, 1 is in prefill, 3 queue, and 2 of the 9 that are in the engine are on their way there.
    expected = {"queue": 3, "prefill": 1, "decode": 3, "engine": 2, "tool": 2}
    assert live.catch_up().step.open == expected
    assert live.snapshot().workers[0].open == {"engine": 9, "tool": 2}
    # Servers that work for others, too, and ends that were lost, add nothing.
    worker.open_now(8, {"turn_end": 2}, [])
    assert sum(live.catch_up().step.open.values()) == 2
    live.stop()


@pytest.mark.parametrize("rids", [{"rid": 3}, {"rids": "abc"}, {"rids": [None, {}, "known"]}, {}])
def test_odd_names_of_calls_are_left_out(rids):
    calls = EngineCalls()
    calls.note("scheduler_receive", CallIds(**rids))
    assert calls.counts() == ({"queue": 1} if "known" in str(rids) else {})


def test_a_call_that_ended_does_not_begin_again():
    calls = EngineCalls()
    calls.note("engine_request", CallIds(rid="a"))  # the file of the worker was read first
    calls.note("scheduler_receive", CallIds(rid="a"))
    assert not calls.counts()


def write_step(run, step, begun):
    file = run.open(step, 0, time_sec=begun)
    file.request(f"r{step}", time_sec=begun + 2, duration_sec=1)
    file.close(begun + 3)


def test_analysis_rests_after_it_worked_and_then_makes_up_for_it(run, monkeypatch):
    monkeypatch.setattr(followed_run, "_LONGEST_REST_SEC", 3600.0)
    live = Follower(run.folder)
    write_step(run, 1, begun=0)
    live.catch_up()
    live._run._processors = 1e-9
    write_step(run, 2, begun=4)
    assert [step.step for step in live.catch_up().done] == [1, 2]  # whoever asks now gets an answer
    write_step(run, 3, begun=8)
    live._run.tail.hurry()
    live.round()
    live._run._finish_steps(time.monotonic() + 10)  # it is quiet by then
    assert not live._run._analyst.is_busy
    live._run._rests_until = 0.0
    live._run._finish_steps(time.monotonic() + 10)
    assert live._run._analyst.is_busy or live._run._analyst._answers  # it may have answered by now
    assert [step.step for step in live.catch_up().done] == [1, 2, 3]
    live.stop()


def test_an_analysis_that_is_killed_is_told_and_begins_again_with_the_next_step(run):
    live = Follower(run.folder)
    file = run.open(1, 0)
    file.request("a", time_sec=2, duration_sec=1)
    file.close(3)
    assert [step.step for step in live.catch_up().done] == [1]
    analyst = live._run._analyst
    analyst._process.kill()
    analyst._listener.join()
    live.round()
    assert "has ended" in live.snapshot().problems[0].sentence
    file = run.open(2, 0, time_sec=4)
    file.request("b", time_sec=6, duration_sec=1)
    file.close(7)
    snapshot = live.catch_up()
    live.stop()
    assert [step.step for step in snapshot.done] == [1, 2]
    assert not snapshot.problems


@pytest.mark.parametrize(("second_launcher", "key"), [("h:1:1", "master a:1"), ("other:2:2", "master a:1")])
def test_ranks_of_one_launch_with_ids_of_their_own_are_followed_together(
    tmp_path, follow, second_launcher, key
):
    first = LiveRun(tmp_path / "exp", "run-1")
    second = LiveRun(tmp_path / "exp", "run-2", begin_us=first.begin_us)
    first_file = first.open(1, 0, launch=key, launcher="h:1:1", rank=0)
    two = second.open(1, 1, time_sec=1, launch=key, launcher=second_launcher, rank=1)
    first_file.request("a", time_sec=10, duration_sec=9)
    two.request("b", time_sec=10, duration_sec=5)
    assert follow(first.folder).step.requests_done == 2
    second.open(2, 1, time_sec=12, launch=key, launcher=second_launcher, rank=1).request(
        "c", 14, duration_sec=1
    )
    first.open(2, 0, time_sec=12, launch=key, launcher="h:1:1", rank=0).request(
        "d", time_sec=15, duration_sec=1
    )
    snapshot = follow(first.folder)
    assert (snapshot.run_id, snapshot.step.step, snapshot.step.requests_done) == ("run-1", 2, 2)


def test_the_same_rank_again_is_a_new_run(tmp_path, follow):
    first = LiveRun(tmp_path / "exp", "run-1")
    again = LiveRun(tmp_path / "exp", "run-2", begin_us=first.begin_us)
    facts = {"launch": "master a:1", "launcher": "h:1:1", "rank": 0}
    first.open(1, 0, **facts).request("a", time_sec=10, duration_sec=9)
    again.open(1, 0, time_sec=20, **facts).request("b", time_sec=25, duration_sec=4)
    snapshot = follow(first.folder)
    assert (snapshot.run_id, snapshot.step.requests_done) == ("run-2", 1)


def test_a_link_to_itself_beside_runs_hides_none(tmp_path):
    folder = synthetic_run(tmp_path / "exp", steps=1, workers=1, requests=2)
    (tmp_path / "loop").symlink_to("loop")
    assert follower.newest_run(tmp_path) == folder
