"""The demo's real rollout has two engines and three steps, and shows every fault where it was planted.

Runs that a fault ends need no engine: there, `support/without_engine/sglang.py` replies.
"""

from __future__ import annotations

import itertools
import json
import os
import shlex
import statistics
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from own_group import run_in_group
from taught_results import taught_results

from sglang_instrument.analysis.answers.engine.join import joined_calls
from sglang_instrument.analysis.answers.routing.gauges import gauge_table
from sglang_instrument.analysis.run.opening import Run
from sglang_instrument.analysis.verdict.verdict import Finding, findings_of
from sglang_instrument.demo.faults import BLOCK_SEC, SLOW_SEC, STARVED_SEC, STRAGGLE_SEC
from sglang_instrument.demo.model import ensure_model
from sglang_instrument.demo.options import DemoOptions
from sglang_instrument.demo.problems import PROBLEMS
from sglang_instrument.schema import LOG_OPENED, OPEN_SPANS, REFERENCE_EVENTS, STEP_CLOSED

pytestmark = pytest.mark.engine

WORKERS = (0, 1)
STEPS = (1, 2, 3)
RUN_LIMIT_SEC = 1200
#: On a busy machine, a step in which nothing hangs may report nothing for ten seconds.
SILENT_SEC = 45
#: Engines that reply at once, in the process of their worker.
STAND_IN = Path(__file__).parents[1] / "support/without_engine"
WITHOUT_ENGINE = {"PYTHONPATH": os.pathsep.join(filter(None, (str(STAND_IN), os.environ.get("PYTHONPATH"))))}

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
        return sorted(
            (record["duration_sec"] for record in records if record["event"] == event), reverse=True
        )


def all_records(run: DemoRun) -> list[Record]:
    folders = [path.name for path in run.folder.glob("*_*") if path.is_dir()]
    return [record for name in folders for worker in WORKERS for record in run.records(name, worker)]


def findings(run: DemoRun) -> list[Finding]:
    """Return the findings in training steps, the verdict first."""
    log = Run.open(run.folder)
    return [finding for finding in findings_of(log, over=True) if not finding.validate]


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
def whole(tmp_path_factory: pytest.TempPathFactory) -> DemoRun:
    """A run that comes to its end, with three faults in worker 0 in step 2."""
    names = ("slow-tool", "loop-block", "slow-reward")
    planted = [option for name in names for option in ("--inject", name)]
    run = run_demo(tmp_path_factory.mktemp("whole"), "--validate", *planted)
    assert run.code == 0, run.errors
    return run


@pytest.fixture(scope="module")
def crashed(tmp_path_factory: pytest.TempPathFactory) -> DemoRun:
    """A reward of worker 0 is starved in step 1; worker 1 is a straggler in step 2, and dies in step 3."""
    planted = [option for name in ("starved-reward", "straggler", "crash") for option in ("--inject", name)]
    return run_demo(tmp_path_factory.mktemp("crashed"), *planted, **WITHOUT_ENGINE)


@pytest.fixture(scope="module")
def hanging(tmp_path_factory: pytest.TempPathFactory) -> DemoRun:
    """A run of one worker in which a tool never returns."""
    hang = ("--workers", "1", "--steps", "1", "--inject", "hang", "--give-up-after", str(SILENT_SEC))
    return run_demo(
        tmp_path_factory.mktemp("hanging"), *hang, SGLANG_INSTRUMENT_HANG_AFTER_SEC="2", **WITHOUT_ENGINE
    )


@pytest.mark.parametrize("worker", WORKERS)
@pytest.mark.parametrize("folder", [*(f"step_{step}" for step in STEPS), "validate_3"])
def test_each_file_begins_with_its_header_and_holds_one_closed_step(
    whole: DemoRun, folder: str, worker: int
) -> None:
    records = whole.records(folder, worker)
    events = [record["event"] for record in records]
    assert events[0] == LOG_OPENED
    assert events.count(STEP_CLOSED) == 1
    assert events.count("total_step_duration") == 1
    assert {record["workid"] for record in records} == {worker}
    assert {record["step"] for record in records} == {int(folder.partition("_")[2])}


def test_a_run_has_no_other_step_folders(whole: DemoRun) -> None:
    names = {path.name for path in whole.folder.iterdir() if path.is_dir() and not path.name.startswith(".")}
    assert names == {"step_1", "step_2", "step_3", "validate_3", "engine", "processes", "output"}


def test_processes_hold_the_settings_of_the_engine_as_sglang_resolved_them(whole: DemoRun) -> None:
    for name in ("worker_0", "scheduler_0_tp0"):
        described = json.loads((whole.folder / "processes" / f"{name}.json").read_text())
        settings = described["configuration"]["server_args"]
        assert settings["tp_size"] == 1
        assert settings["load_balance_method"] == "round_robin"  # SGLang resolved "auto" to it
        assert "model_path" not in settings
        assert described["machine"]["cores"] > 0


def test_schedulers_record_how_full_they_are_while_they_run_batches(whole: DemoRun) -> None:
    gauges = gauge_table(Run.open(whole.folder))
    assert set(gauges["scheduler"]) == {f"scheduler_{worker}_tp0" for worker in WORKERS}
    assert gauges["batch_size"].min() >= 1
    assert 0 <= gauges["kv_cache_used_share"].min() <= gauges["kv_cache_used_share"].max() <= 1


def test_the_parts_of_a_step_add_up_to_the_step(whole: DemoRun) -> None:
    shares = []
    for step, worker in itertools.product(STEPS, WORKERS):
        (step_sec,) = whole.durations("total_step_duration", step, worker)
        parts = [record for record in whole.records(step, worker) if record["event"] in PARTS]
        assert sorted(part["event"] for part in parts) == sorted(PARTS)
        shares.append(sum(part["duration_sec"] for part in parts) / step_sec)
    assert max(shares) <= 1 + 1e-6
    # A busy machine may stop a worker between two parts of some steps.
    assert statistics.median(shares) >= 0.98


@pytest.mark.parametrize("worker", WORKERS)
@pytest.mark.parametrize("step", STEPS)
def test_as_many_requests_and_turns_end_as_start(whole: DemoRun, step: int, worker: int) -> None:
    events = [record["event"] for record in whole.records(step, worker)]
    assert events.count("request_start") == events.count("async_rollout_request_complete") == 16
    assert events.count("turn_start") == events.count("turn_end") > 16
    assert not [record for record in whole.records(step, worker) if "error" in record]


def test_all_that_the_demo_does_has_the_names_of_the_reference(whole: DemoRun) -> None:
    seen = {record["event"] for step in STEPS for worker in WORKERS for record in whole.records(step, worker)}
    assert seen >= REFERENCE_EVENTS - SINGLE_TURN


def test_each_event_of_a_request_says_which_one_and_which_turn(whole: DemoRun) -> None:
    records = whole.records(1, 0)
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


def test_the_decorated_function_of_the_user_is_logged_with_its_request(whole: DemoRun) -> None:
    scores = [record for record in whole.records(1, 0) if record["event"] == "score"]
    assert len(scores) == 16
    assert {score["phase"] for score in scores} == {"reward"}
    assert len({score["extra"]["request_id"] for score in scores}) == 16


def test_each_call_of_the_engine_is_joined_with_what_its_scheduler_did(whole: DemoRun) -> None:
    run = Run.open(whole.folder, cached=False)
    calls = joined_calls(run).to_dicts()
    made = [record for record in all_records(whole) if record["event"] == "engine_generate"]
    assert len(calls) == len(made) > 100
    for call in calls:
        inside = call["queue_sec"] + call["prefill_sec"] + call["decode_sec"]
        assert 0 < inside < call["call_sec"] + 0.5  # the clocks of three processes
    assert {call["scheduler"] for call in calls} == {"scheduler_0_tp0", "scheduler_1_tp0"}


def test_the_workers_share_one_run(whole: DemoRun) -> None:
    headers = [whole.records(step, worker)[0] for step in STEPS for worker in WORKERS]
    assert len({header["extra"]["run_id"] for header in headers}) == 1


def test_no_text_of_the_dialogues_reaches_the_log(whole: DemoRun) -> None:
    logged = "".join(path.read_text() for path in whole.folder.glob("*_*/*.jsonl"))
    for text in ("apples", "<tool_call>", "That is wrong"):
        assert text not in logged


def test_the_demo_ends_with_what_it_found_and_what_to_try_next(whole: DemoRun) -> None:
    assert str(whole.folder) in whole.printed
    assert "sglang-instrument events" in whole.printed
    assert "tool_execution" in whole.printed


def test_each_command_that_the_demo_prints_works_as_printed(whole: DemoRun) -> None:
    commands = whole.printed.partition("next: ")[2].splitlines()
    assert [shlex.split(command)[1] for command in commands] == ["summary", "events", "report"]
    folder = whole.folder.parents[1]
    for command in commands:
        done = subprocess.run(["bash", "-c", command], cwd=folder, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
    assert (folder / "tried.html").stat().st_size > 10_000


def test_results_are_those_of_the_dialogues_token_for_token(whole: DemoRun) -> None:
    model = ensure_model(Path.home() / ".cache/sglang-instrument")
    assert json.loads(whole.results.read_text()) == taught_results(model, DemoOptions(validate=True))


def test_the_model_repeats_its_training_dialogues(whole: DemoRun) -> None:
    rewards = {
        request["question"]: request["rewards"]["calculator"]
        for worker in json.loads(whole.results.read_text())
        for step in worker
        for request in step["requests"]
    }
    assert len(rewards) > len(PROBLEMS) / 2
    for question, reward in rewards.items():
        assert reward == (0.1 if question == "Guess my number." else 1.0), question


def first_of(records: list[Record], event: str) -> Record:
    """Return the record of an event that began first."""
    return min(
        (record for record in records if record["event"] == event), key=lambda record: record["start_us"]
    )


def usual_sec(run: DemoRun, event: str) -> float:
    """Return the median duration of an event in steps without its fault: a busy machine delays some."""
    steps = ((1, 0), (1, 1), (2, 1))
    return statistics.median(sec for step, worker in steps for sec in run.durations(event, step, worker))


def test_a_slow_tool_call_is_seen_where_it_was_planted(whole: DemoRun) -> None:
    assert first_of(whole.records(2, 0), "tool_execution")["duration_sec"] >= SLOW_SEC
    assert usual_sec(whole, "tool_execution") < SLOW_SEC / 2


def test_a_slow_reward_is_seen_where_it_was_planted(whole: DemoRun) -> None:
    assert first_of(whole.records(2, 0), "reward_calculation")["duration_sec"] >= SLOW_SEC
    assert usual_sec(whole, "reward_calculation") < SLOW_SEC / 2
    # The scoring itself was not slow.
    assert statistics.median(whole.durations("score", 2, 0)) < SLOW_SEC / 2


def test_a_tool_that_blocks_the_event_loop_is_found_where_it_was_planted(whole: DemoRun) -> None:
    _, second, *_ = whole.durations("tool_execution", 2, 0)
    assert second >= BLOCK_SEC
    blocks = [record for record in whole.records(2, 0) if record["event"] == "event_loop_block"]
    (block,) = [block for block in blocks if "at_tool_call" in block["extra"]["stack"][-1]]
    assert block["duration_sec"] > BLOCK_SEC / 2


def test_a_starved_reward_is_told_from_a_slow_one_and_the_culprit_is_named(crashed: DemoRun) -> None:
    records = crashed.records(1, 0)
    starved = max(
        (record for record in records if record["event"] == "reward_calculation"),
        key=lambda record: record["duration_sec"],
    )
    assert starved["duration_sec"] >= STARVED_SEC
    assert starved["active_sec"] < STARVED_SEC / 2
    blocks = [record for record in records if record["event"] == "event_loop_block"]
    [block] = [block for block in blocks if "unmeasured_work" in block["extra"]["stack"][-1]]
    assert block["duration_sec"] > STARVED_SEC / 2
    assert block["start_us"] < starved["start_us"] + starved["duration_sec"] * 1e6
    assert starved["start_us"] < block["start_us"] + block["duration_sec"] * 1e6
    longest = max(blocks, key=lambda block: block["duration_sec"])  # a busy machine may add some
    run = Run.open(crashed.folder)
    findings_of_worker = [
        finding for finding in findings_of(run, over=False) if (finding.step, finding.worker) == (1, 0)
    ]
    [blocked] = [finding for finding in findings_of_worker if finding.cause == "blocked-loop"]
    assert blocked.sentence.endswith(longest["extra"]["stack"][-1].split()[-1])


def test_the_other_worker_is_seen_waiting_for_a_straggler(crashed: DemoRun) -> None:
    assert crashed.durations("tool_execution", 2, 1)[-1] >= STRAGGLE_SEC
    assert crashed.durations("tool_execution", 2, 0)[-1] < STRAGGLE_SEC
    waited, waited_for = (crashed.durations("barrier_wait_duration", 2, worker)[0] for worker in WORKERS)
    assert waited > STRAGGLE_SEC / 2 > waited_for


def test_a_tool_that_never_returns_ends_the_demo_and_is_seen_open(hanging: DemoRun) -> None:
    assert hanging.code == 1
    assert f"no report for {SILENT_SEC} s" in hanging.errors
    records = hanging.records(1, 0)
    events = [record["event"] for record in records]
    assert STEP_CLOSED not in events
    assert events.count("request_start") == events.count("async_rollout_request_complete") + 1
    reports = [json.dumps(record["extra"]) for record in records if record["event"] == OPEN_SPANS]
    assert any("tool_execution" in report for report in reports)


def test_a_worker_that_is_killed_leaves_its_steps_and_a_clear_message(crashed: DemoRun) -> None:
    assert crashed.code == 1
    assert "worker 1 was killed by SIGKILL" in crashed.errors
    assert str(crashed.folder / "output" / "worker_1.txt") in crashed.errors
    for worker in WORKERS:
        for step in (1, 2):
            assert STEP_CLOSED in [record["event"] for record in crashed.records(step, worker)]
    assert STEP_CLOSED not in [record["event"] for record in crashed.records(3, 1)]
    # The other worker, if it waited, was ended in time or reported that its step failed.
    steps = [record for record in crashed.records(3, 0) if record["event"] == "total_step_duration"]
    assert all("error" in record for record in steps)
    assert crashed.durations("total_step_duration", 3, 1) == []


def test_the_next_commands_name_the_step_of_the_verdict(crashed: DemoRun, whole: DemoRun) -> None:
    [accused, *_] = findings(crashed)
    assert (accused.cause, accused.step, accused.worker) == ("death", 3, 1)
    where = f"{crashed.folder} --step {accused.step} --worker {accused.worker}"
    assert f"sglang-instrument events {where}" in crashed.printed
    # On a busy machine, no step of a run of three may stand out; then the slowest is named.
    steps = [finding.step for finding in findings(whole) if finding.step is not None]
    steps.append(max(STEPS, key=lambda step: step_sec(whole, step)))
    assert f"sglang-instrument summary {whole.folder} --step {steps[0]}" in whole.printed


def step_sec(run: DemoRun, step: int) -> float:
    """Return how long a step took, until its slowest worker was done."""
    return max(run.durations("total_step_duration", step, worker)[0] for worker in WORKERS)
