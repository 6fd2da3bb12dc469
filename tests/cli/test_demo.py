"""The demo's real rollout has two engines and three steps, and shows every fault where it was planted."""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import shlex
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from own_group import run_in_group

from sglang_instrument.analysis.answers.join import joined_calls
from sglang_instrument.analysis.run.opening import open_run
from sglang_instrument.analysis.verdict.verdict import Finding, findings_of
from sglang_instrument.cli.commands import demo
from sglang_instrument.cli.commands.demo import _this_command
from sglang_instrument.cli.main import main
from sglang_instrument.demo.faults import BLOCK_SEC, FAULTS, SLOW_SEC, STARVED_SEC, STRAGGLE_SEC, pause
from sglang_instrument.demo.launch import DemoError, Worker, check_workers
from sglang_instrument.demo.options import DemoOptions
from sglang_instrument.demo.problems import PROBLEMS, draw, transcript
from sglang_instrument.schema import LOG_OPENED, OPEN_SPANS, REFERENCE_EVENTS, STEP_CLOSED
from sglang_instrument.testing import synthetic_run

WORKERS = (0, 1)
STEPS = (1, 2, 3)
RUN_LIMIT_SEC = 1200
#: On a busy machine, a step in which nothing hangs may report nothing for ten seconds.
SILENT_SEC = 45

#: The parts of a step, in order.
PARTS = frozenset(
    {
        "preprocessing_duration",
        "async_generate_duration",
        "sorting_duration",
        "barrier_wait_duration",
        "cache_flush_duration",
        "broadcast_duration",
        "data_extraction_duration",
        "padding_duration",
        "concatenation_duration",
        "batch_construction_duration",
        "final_construction_duration",
    }
)
#: Events of single-turn rollouts, which the demo does not have.
SINGLE_TURN = frozenset({"engine_async_generate", "barrier"})

Record = dict[str, Any]


@dataclass(frozen=True)
class DemoRun:
    """A finished run: its exit code, its output and its folder."""

    code: int
    printed: str
    errors: str
    folder: Path
    results: Path

    def records(self, step: int | str, worker: int) -> list[Record]:
        name = step if isinstance(step, str) else f"step_{step}"
        lines = (self.folder / name / f"worker_{worker}.jsonl").read_text().splitlines()
        return [json.loads(line) for line in lines]

    def durations(self, event: str, step: int, worker: int) -> list[float]:
        """Return the durations of an event in seconds, the longest first."""
        records = self.records(step, worker)
        return sorted((one["duration_sec"] for one in records if one["event"] == event), reverse=True)


def all_records(run: DemoRun) -> list[Record]:
    folders = [path.name for path in run.folder.glob("*_*") if path.is_dir()]
    return [record for name in folders for worker in WORKERS for record in run.records(name, worker)]


def findings(run: DemoRun) -> list[Finding]:
    """Return the findings in training steps, the verdict first."""
    log = open_run(run.folder)
    return [found for found in findings_of(log, over=True) if not found.validate]


def run_demo(folder: Path, *options: str, **environment: str) -> DemoRun:
    settings = {name: value for name, value in os.environ.items() if not name.startswith("SGLANG_INSTRUMENT")}
    results = folder / "results.json"
    done = run_in_group(
        [sys.executable, "-m", "sglang_instrument.cli.main", "demo", "--results", str(results), *options],
        cwd=folder,
        env={**settings, "EXPERIMENT_NAME": "tried", "COLUMNS": "100", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        timeout=RUN_LIMIT_SEC,
    )
    return DemoRun(done.returncode, done.stdout, done.stderr, folder / "logs" / "tried", results)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> DemoRun:
    run = run_demo(tmp_path_factory.mktemp("plain"), "--validate")
    assert run.code == 0, run.errors
    return run


@pytest.fixture(scope="module")
def faulty(tmp_path_factory: pytest.TempPathFactory) -> DemoRun:
    """Faults in worker 0, one in step 1 and three in step 2; worker 1 dies in step 3."""
    names = ("starved-reward", "slow-tool", "loop-block", "slow-reward", "crash")
    planted = [option for name in names for option in ("--inject", name)]
    return run_demo(tmp_path_factory.mktemp("faulty"), *planted)


@pytest.fixture(scope="module")
def hanging(tmp_path_factory: pytest.TempPathFactory) -> DemoRun:
    """A straggler in step 2, and a tool that never returns in step 3."""
    planted = ("--inject", "straggler", "--inject", "hang", "--give-up-after", str(SILENT_SEC))
    return run_demo(tmp_path_factory.mktemp("hanging"), *planted, SGLANG_INSTRUMENT_HANG_AFTER_SEC="2")


@pytest.mark.engine
@pytest.mark.parametrize("worker", WORKERS)
@pytest.mark.parametrize("folder", [*(f"step_{step}" for step in STEPS), "validate_3"])
def test_each_file_begins_with_its_header_and_holds_one_closed_step(
    plain: DemoRun, folder: str, worker: int
) -> None:
    records = plain.records(folder, worker)
    events = [record["event"] for record in records]
    assert events[0] == LOG_OPENED
    assert events.count(STEP_CLOSED) == 1
    assert events.count("total_step_duration") == 1
    assert {record["workid"] for record in records} == {worker}
    assert {record["step"] for record in records} == {int(folder.partition("_")[2])}


@pytest.mark.engine
def test_a_run_has_no_other_step_folders(plain: DemoRun) -> None:
    names = {path.name for path in plain.folder.iterdir() if path.is_dir() and not path.name.startswith(".")}
    assert names == {"step_1", "step_2", "step_3", "validate_3", "engine", "processes", "output"}


@pytest.mark.engine
def test_the_parts_of_a_step_add_up_to_the_step(plain: DemoRun) -> None:
    shares = []
    for step, worker in itertools.product(STEPS, WORKERS):
        (whole,) = plain.durations("total_step_duration", step, worker)
        parts = [record for record in plain.records(step, worker) if record["event"] in PARTS]
        assert sorted(part["event"] for part in parts) == sorted(PARTS)
        shares.append(sum(part["duration_sec"] for part in parts) / whole)
    assert max(shares) <= 1 + 1e-6
    # A busy machine may stop a worker between two parts of some steps.
    assert statistics.median(shares) >= 0.98


@pytest.mark.engine
@pytest.mark.parametrize("worker", WORKERS)
@pytest.mark.parametrize("step", STEPS)
def test_as_many_requests_and_turns_end_as_start(plain: DemoRun, step: int, worker: int) -> None:
    events = [record["event"] for record in plain.records(step, worker)]
    assert events.count("request_start") == events.count("async_rollout_request_complete") == 16
    assert events.count("turn_start") == events.count("turn_end") > 16
    assert not [record for record in plain.records(step, worker) if "error" in record]


@pytest.mark.engine
def test_all_that_the_demo_does_has_the_names_of_the_reference(plain: DemoRun) -> None:
    seen = {record["event"] for step in STEPS for worker in WORKERS for record in plain.records(step, worker)}
    assert seen >= REFERENCE_EVENTS - SINGLE_TURN


@pytest.mark.engine
def test_each_event_of_a_request_says_which_one_and_which_turn(plain: DemoRun) -> None:
    records = plain.records(1, 0)
    requests = {
        record["extra"]["request_id"]
        for record in records
        if record["event"] == "async_rollout_request_complete"
    }
    of_turns = [record for record in records if record["event"] in ("turn_end", "turn_engine_call")]
    assert len(requests) == 16
    assert {record["extra"]["request_id"] for record in of_turns} == requests
    assert all(isinstance(record["extra"]["turn"], int) for record in of_turns)
    assert min(record["extra"]["turn"] for record in of_turns) == 0


@pytest.mark.engine
def test_the_decorated_function_of_the_user_is_logged_with_its_request(plain: DemoRun) -> None:
    scores = [record for record in plain.records(1, 0) if record["event"] == "score"]
    assert len(scores) == 16
    assert {score["phase"] for score in scores} == {"reward"}
    assert len({score["extra"]["request_id"] for score in scores}) == 16


@pytest.mark.engine
def test_each_call_of_the_engine_is_joined_with_what_its_scheduler_did(plain: DemoRun) -> None:
    run = open_run(plain.folder, cached=False)
    calls = joined_calls(run).to_dicts()
    made = [record for record in all_records(plain) if record["event"] == "engine_generate"]
    assert len(calls) == len(made) > 100
    for call in calls:
        inside = call["queue_sec"] + call["prefill_sec"] + call["decode_sec"]
        assert 0 < inside < call["call_sec"] + 0.5  # the clocks of three processes
    assert {call["scheduler"] for call in calls} == {"scheduler_0_tp0", "scheduler_1_tp0"}


@pytest.mark.engine
def test_the_workers_share_one_run(plain: DemoRun) -> None:
    headers = [plain.records(step, worker)[0] for step in STEPS for worker in WORKERS]
    assert len({header["extra"]["run_id"] for header in headers}) == 1


@pytest.mark.engine
def test_no_text_of_the_dialogues_reaches_the_log(plain: DemoRun) -> None:
    logged = "".join(path.read_text() for path in plain.folder.glob("*_*/*.jsonl"))
    for text in ("apples", "<tool_call>", "That is wrong"):
        assert text not in logged


@pytest.mark.engine
def test_the_demo_ends_with_what_it_found_and_what_to_try_next(plain: DemoRun) -> None:
    assert str(plain.folder) in plain.printed
    assert "sglang-instrument events" in plain.printed
    assert "tool_execution" in plain.printed


@pytest.mark.engine
def test_each_command_that_the_demo_prints_works_as_printed(plain: DemoRun) -> None:
    commands = plain.printed.partition("next: ")[2].splitlines()
    assert [shlex.split(command)[1] for command in commands] == ["summary", "events", "report"]
    folder = plain.folder.parents[1]
    for command in commands:
        done = subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert (folder / "tried.html").stat().st_size > 10_000


@pytest.mark.engine
def test_results_are_the_same_token_for_token_without_install(plain: DemoRun, tmp_path: Path) -> None:
    bare = run_demo(tmp_path, "--validate", "--no-install")
    assert bare.code == 0, bare.errors
    assert list((bare.folder).glob("step_*")) == []
    assert json.loads(bare.results.read_text()) == json.loads(plain.results.read_text())


@pytest.mark.engine
def test_the_model_repeats_its_training_dialogues(plain: DemoRun) -> None:
    rewards = {
        request["question"]: request["rewards"]["calculator"]
        for worker in json.loads(plain.results.read_text())
        for step in worker
        for request in step["requests"]
    }
    assert len(rewards) > len(PROBLEMS) / 2
    for question, reward in rewards.items():
        assert reward == (0.1 if question == "Guess my number." else 1.0), question


@pytest.mark.engine
def test_a_slow_tool_call_is_seen_where_it_was_planted(faulty: DemoRun) -> None:
    slowest, second, *_ = faulty.durations("tool_execution", 2, 0)
    assert slowest >= SLOW_SEC > second
    assert faulty.durations("tool_execution", 1, 1)[0] < SLOW_SEC
    assert faulty.durations("tool_execution", 2, 1)[0] < SLOW_SEC


@pytest.mark.engine
def test_a_slow_reward_is_seen_where_it_was_planted(faulty: DemoRun) -> None:
    slowest, second, *_ = faulty.durations("reward_calculation", 2, 0)
    assert slowest >= SLOW_SEC > second
    assert faulty.durations("reward_calculation", 2, 1)[0] < SLOW_SEC
    assert max(faulty.durations("score", 2, 0)) < SLOW_SEC  # the scoring itself was not slow


@pytest.mark.engine
def test_a_tool_that_blocks_the_event_loop_is_found_where_it_was_planted(faulty: DemoRun) -> None:
    _, second, *_ = faulty.durations("tool_execution", 2, 0)
    assert second >= BLOCK_SEC
    blocks = [record for record in faulty.records(2, 0) if record["event"] == "event_loop_block"]
    (block,) = [block for block in blocks if "at_tool_call" in block["extra"]["stack"][-1]]
    assert block["duration_sec"] > BLOCK_SEC / 2


@pytest.mark.engine
def test_a_starved_reward_is_told_from_a_slow_one_and_the_culprit_is_named(
    faulty: DemoRun,
) -> None:
    records = faulty.records(1, 0)
    starved = max(
        (one for one in records if one["event"] == "reward_calculation"), key=lambda one: one["duration_sec"]
    )
    assert starved["duration_sec"] >= STARVED_SEC
    assert starved["active_sec"] < STARVED_SEC / 2
    blocks = [one for one in records if one["event"] == "event_loop_block"]
    [block] = [one for one in blocks if "unmeasured_work" in one["extra"]["stack"][-1]]
    assert block["duration_sec"] > STARVED_SEC / 2
    assert block["start_us"] < starved["start_us"] + starved["duration_sec"] * 1e6
    assert starved["start_us"] < block["start_us"] + block["duration_sec"] * 1e6
    longest = max(blocks, key=lambda one: one["duration_sec"])  # a busy machine may add some
    run = open_run(faulty.folder)
    found = [one for one in findings_of(run, over=False) if (one.step, one.worker) == (1, 0)]
    [blocked] = [one for one in found if one.cause == "blocked-loop"]
    assert blocked.sentence.endswith(longest["extra"]["stack"][-1].split()[-1])


@pytest.mark.engine
def test_the_other_worker_is_seen_waiting_for_a_straggler(hanging: DemoRun) -> None:
    assert hanging.durations("tool_execution", 2, 1)[-1] >= STRAGGLE_SEC
    assert hanging.durations("tool_execution", 2, 0)[-1] < STRAGGLE_SEC
    waited, waited_for = (hanging.durations("barrier_wait_duration", 2, worker)[0] for worker in WORKERS)
    assert waited > STRAGGLE_SEC / 2 > waited_for


@pytest.mark.engine
def test_a_tool_that_never_returns_ends_the_demo_and_is_seen_open(hanging: DemoRun) -> None:
    assert hanging.code == 1
    assert f"no report for {SILENT_SEC} s" in hanging.errors
    records = hanging.records(3, 0)
    events = [record["event"] for record in records]
    assert STEP_CLOSED not in events
    assert events.count("request_start") == events.count("async_rollout_request_complete") + 1
    reports = [json.dumps(record["extra"]) for record in records if record["event"] == OPEN_SPANS]
    assert any("tool_execution" in report for report in reports)


@pytest.mark.engine
def test_a_worker_that_is_killed_leaves_its_steps_and_a_clear_message(faulty: DemoRun) -> None:
    assert faulty.code == 1
    assert "worker 1 was killed by SIGKILL" in faulty.errors
    assert str(faulty.folder / "output" / "worker_1.txt") in faulty.errors
    for worker in WORKERS:
        for step in (1, 2):
            assert STEP_CLOSED in [record["event"] for record in faulty.records(step, worker)]
    assert STEP_CLOSED not in [record["event"] for record in faulty.records(3, 1)]
    # The other worker, if it waited, was ended in time or reported that its step failed.
    whole = [record for record in faulty.records(3, 0) if record["event"] == "total_step_duration"]
    assert all("error" in record for record in whole)
    assert faulty.durations("total_step_duration", 3, 1) == []


@pytest.mark.parametrize("killed", WORKERS)
def test_the_killed_worker_is_named_and_not_those_that_failed_after(tmp_path: Path, killed: int) -> None:
    ends = ["kill -9 $$" if rank == killed else "exit 1" for rank in WORKERS]
    workers = [
        Worker(rank, subprocess.Popen(["sh", "-c", end]), -1, tmp_path / f"worker_{rank}.txt")
        for rank, end in enumerate(ends)
    ]
    for worker in workers:
        worker.process.wait()
    with pytest.raises(DemoError) as raised:
        check_workers(workers, DemoOptions(), silent_sec=0.0)
    assert f"worker {killed} was killed by SIGKILL" in str(raised.value)


@pytest.mark.engine
def test_the_next_commands_name_the_step_of_the_verdict_or_the_slowest_one(
    faulty: DemoRun, plain: DemoRun
) -> None:
    [accused, *_] = findings(faulty)
    assert (accused.cause, accused.step, accused.worker) == ("death", 3, 1)
    where = f"{faulty.folder} --step {accused.step} --worker {accused.worker}"
    assert f"sglang-instrument events {where}" in faulty.printed
    took = {
        step: max(plain.durations("total_step_duration", step, worker)[0] for worker in WORKERS)
        for step in STEPS
    }
    steps = [found.step for found in findings(plain)] or [max(STEPS, key=lambda step: took[step])]
    assert f"sglang-instrument summary {plain.folder} --step {steps[0]}" in plain.printed


def test_a_planted_pause_is_never_too_short() -> None:
    uvloop = pytest.importorskip("uvloop")  # a clock so coarse that most sleeps end too early

    async def pauses() -> list[float]:
        others = asyncio.ensure_future(forever())
        taken = []
        for _ in range(50):
            begin = time.perf_counter()
            await pause(0.005)
            taken.append(time.perf_counter() - begin)
        others.cancel()
        return taken

    async def forever() -> None:
        while True:
            await asyncio.sleep(0)

    loop = uvloop.new_event_loop()
    try:
        assert min(loop.run_until_complete(pauses())) >= 0.005
    finally:
        loop.close()


def test_the_demo_without_its_packages_prints_a_command_for_this_python(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo, "_NEEDED", ("no_such_package",))
    monkeypatch.setattr(sys, "executable", "/a venv/bin/python")
    assert main(["demo"]) == 2
    said = capsys.readouterr().err
    assert said.startswith("sglang-instrument: the demo needs no_such_package: use `make demo`")
    commands = [shlex.split(one) for one in said.partition("or run ")[2].split(" && ")]
    assert [one[:3] for one in commands[1:]] == [["/a venv/bin/python", "-m", "uv"]] * 2
    assert all(Path(one[-1]).is_file() for one in commands[1:])


@pytest.mark.parametrize("there", [True, False])
def test_the_report_is_offered_only_where_it_can_be_written(
    there: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    synthetic_run(tmp_path / "logs", steps=1, workers=1, requests=1)
    monkeypatch.setattr(demo, "_OF_REPORT", ("json" if there else "no_such_package",))
    demo._show_next(tmp_path / "logs")
    assert (" report " in capsys.readouterr().out) == there


@pytest.mark.parametrize("where", ["on PATH", "below this folder", "elsewhere"])
def test_the_demo_names_its_program_as_a_shell_finds_it(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program = tmp_path / "a venv/bin/sglang-instrument"
    program.parent.mkdir(parents=True)
    program.touch(mode=0o755)
    monkeypatch.setattr(sys, "executable", str(program.with_name("python")))
    (tmp_path / "other").mkdir()
    monkeypatch.chdir(tmp_path if where == "below this folder" else tmp_path / "other")
    monkeypatch.setenv("PATH", str(program.parent) if where == "on PATH" else os.defpath)
    assert (
        _this_command()
        == {
            "on PATH": "sglang-instrument",
            "below this folder": "'a venv/bin/sglang-instrument'",
            "elsewhere": f"'{program}'",
        }[where]
    )


def test_a_batch_is_the_same_for_the_same_seed_and_begins_with_a_tool_call() -> None:
    batch = draw(16, seed=7, step=2, worker=1)
    assert batch == draw(16, seed=7, step=2, worker=1)
    assert batch != draw(16, seed=8, step=2, worker=1)
    assert "<tool_call>" in draw(1, seed=3, step=1, worker=0)[0].replies[0]


def test_a_transcript_answers_each_call_and_each_wrong_answer() -> None:
    taught = {problem.question: transcript(problem) for problem in PROBLEMS}
    roles = [role for role, _ in taught["Ann had 20 coins and lost 6. How many are left?"]]
    assert roles == ["user", "assistant", "tool", "assistant", "user", "assistant", "tool", "assistant"]
    assert [text for role, text in taught["Add 2 and 3, and add 4 and 5."] if role == "tool"] == [
        "5",
        "9",
        "14",
    ]


@pytest.mark.parametrize("fault", FAULTS)
def test_the_help_says_where_each_fault_is_planted(fault: str, capsys: pytest.CaptureFixture[str]) -> None:
    from sglang_instrument.cli.main import main

    assert main(["demo", "--help"]) == 0
    assert FAULTS[fault] in capsys.readouterr().out


@pytest.mark.engine
def test_a_straggler_needs_a_second_worker(capsys: pytest.CaptureFixture[str]) -> None:
    from sglang_instrument.cli.main import main

    assert main(["demo", "--inject", "straggler", "--workers", "1"]) == 2
    assert "--workers 2" in capsys.readouterr().err
