"""A synthetic run has the same bytes for the same seed, nests like real runs, and has the planted causes."""

import json
from pathlib import Path
from typing import Any

import pytest

from sglang_instrument.analysis import findings_of, open_run, step_table
from sglang_instrument.analysis.answers.engine.join import engine_request_table, shares
from sglang_instrument.analysis.answers.engine.round_trips import ahead_us
from sglang_instrument.schema import KEYS, REFERENCE_EVENTS
from sglang_instrument.testing import (
    BlockedLoop,
    Engine,
    Hang,
    Plateau,
    RunShape,
    SlowEngine,
    SlowReward,
    TornFile,
    synthetic_run,
)
from sglang_instrument.testing.run_shape import play_run
from sglang_instrument.testing.synthetic import write_run

PARENTS = {
    "preprocessing_duration": "total_step_duration",
    "async_generate_duration": "total_step_duration",
    "barrier_wait_duration": "total_step_duration",
    "async_rollout_request_complete": "async_generate_duration",
    "main_loop": "async_rollout_request_complete",
    "reward_calculation": "async_rollout_request_complete",
    "pending_state_handling": "main_loop",
    "turn_end": "main_loop",
    "turn_engine_call": "turn_end",
    "engine_async_generate_actual": "turn_engine_call",
    "turn_tool_parsing": "turn_post_process",
    "tool_execution": "tool_calling_state",
    "tool_call": "tool_execution",
    "interaction_response": "interacting_state",
}


def lines_of(folder: Path, step: int, worker: int) -> list[dict[str, Any]]:
    text = (folder / f"step_{step}" / f"worker_{worker}.jsonl").read_text()
    return [json.loads(line) for line in text.splitlines()]


def requests_of(folder: Path, step: int, worker: int) -> list[dict[str, Any]]:
    return [
        line for line in lines_of(folder, step, worker) if line["event"] == "async_rollout_request_complete"
    ]


def end_sec(line: dict[str, Any]) -> float:
    return float(line["start_us"] / 1e6 + line["duration_sec"])


def duration(folder: Path, step: int, worker: int, event: str) -> float:
    return sum(line["duration_sec"] for line in lines_of(folder, step, worker) if line["event"] == event)


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(tmp_path: Path) -> None:
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        synthetic_run(tmp_path / name, steps=2, workers=2, requests=5, seed=seed)
    a, b, c = (
        {path.relative_to(tmp_path / name): path.read_bytes() for path in (tmp_path / name).rglob("*.jsonl")}
        for name in "abc"
    )
    assert len(a) == 4
    assert a == b
    assert a.keys() == c.keys()
    assert all(a[path] != c[path] for path in a)


def test_a_run_with_validation_has_all_events_of_the_reference(tmp_path: Path) -> None:
    run = open_run(synthetic_run(tmp_path, steps=2, workers=2, requests=12, validate_every=2))
    assert set(run.records["event"].unique()) == REFERENCE_EVENTS | {"tool_call"}


def test_lines_have_the_keys_of_the_schema_in_their_order(tmp_path: Path) -> None:
    synthetic_run(tmp_path, steps=1, workers=1, requests=6)
    for line in lines_of(tmp_path, 1, 0):
        assert list(line) == [key for key in KEYS if key in line]


def test_files_begin_with_log_opened_and_end_with_step_closed_and_log_closed(tmp_path: Path) -> None:
    synthetic_run(tmp_path, steps=2, workers=2, requests=3)
    for step in (1, 2):
        for worker in (0, 1):
            events = [line["event"] for line in lines_of(tmp_path, step, worker)]
            assert (events[0], *events[-2:]) == ("log_opened", "step_closed", "log_closed")


@pytest.mark.parametrize("engine", [Engine(), Engine(0.01, 1e-3, 1e-4, most_running=5, shared=True)])
def test_spans_lie_where_the_code_that_they_measure_lies(engine: Engine, tmp_path: Path) -> None:
    folder = synthetic_run(
        tmp_path, steps=2, workers=2, requests=12, engine=engine, causes=[BlockedLoop(2, 1, 1.0, 2.0)]
    )
    spans = open_run(folder).spans
    events = spans["event"].to_list()
    seen = set()
    for event, parent in zip(events, spans["parent"], strict=True):
        if event in PARENTS:
            assert events[parent] == PARENTS[event]
            seen.add(event)
    assert seen == set(PARENTS)


def test_all_workers_leave_the_barrier_together_after_the_last_has_come(tmp_path: Path) -> None:
    run = open_run(synthetic_run(tmp_path, steps=3, workers=3, requests=8))
    waits = run.spans.filter(event="barrier_wait_duration")
    for step in run.steps:
        of_step = waits.filter(step=step)
        ends = of_step["end_us"].to_list()
        assert max(ends) - min(ends) <= 2
        assert of_step["duration_sec"].min() == pytest.approx(1e-3, abs=1e-5)


def test_a_straggler_makes_the_others_wait(tmp_path: Path) -> None:
    synthetic_run(tmp_path, steps=2, workers=3, requests=20, causes=[SlowEngine(2, 1, factor=8.0)])
    assert duration(tmp_path, 2, 1, "barrier_wait_duration") < 0.01
    assert all(duration(tmp_path, 2, worker, "barrier_wait_duration") > 10 for worker in (0, 2))


def test_in_a_plateau_the_planted_number_of_requests_is_stuck_in_the_planted_turn(tmp_path: Path) -> None:
    plateau = Plateau(step=2, worker=0, start_sec=10.0, end_sec=40.0, requests=7, turn=1)
    synthetic_run(tmp_path, steps=2, workers=2, requests=30, causes=[plateau])
    generate = next(line for line in lines_of(tmp_path, 2, 0) if line["event"] == "async_generate_duration")
    begin, end = generate["start_us"] + 10e6, generate["start_us"] + 40e6
    still = {
        line["extra"]["request_id"]
        for line in lines_of(tmp_path, 2, 0)
        if line["event"] == "turn_engine_call"
        and line["extra"]["turn"] == 1
        and line["start_us"] < begin
        and line["start_us"] + line["duration_sec"] * 1e6 > end
    }
    assert len(still) == 7
    for line in requests_of(tmp_path, 2, 0):
        done = line["start_us"] + line["duration_sec"] * 1e6
        assert done > end if line["extra"]["request_id"] in still else done < begin


def test_a_slow_reward_lengthens_the_rewards_of_one_worker_in_one_step(tmp_path: Path) -> None:
    synthetic_run(tmp_path, steps=2, workers=2, requests=10, causes=[SlowReward(2, 1, 3.0)])
    assert duration(tmp_path, 2, 1, "reward_calculation") > 30
    assert max(duration(tmp_path, *place, "reward_calculation") for place in ((1, 1), (2, 0), (1, 0))) < 1


def test_a_blocked_loop_is_logged_and_delays_what_ends_meanwhile_until_its_end(tmp_path: Path) -> None:
    ends = []
    for name, causes in (("free", []), ("blocked", [BlockedLoop(1, 0, at_sec=1.0, seconds=2.0)])):
        synthetic_run(tmp_path / name, steps=1, workers=1, requests=20, seed=3, causes=causes)
        lines = lines_of(tmp_path / name, 1, 0)
        first = [line for line in lines if line["event"] == "turn_engine_call" and line["extra"]["turn"] == 0]
        ends.append(
            {line["extra"]["request_id"]: line["start_us"] / 1e6 + line["duration_sec"] for line in first}
        )
    assert duration(tmp_path / "blocked", 1, 0, "event_loop_block") == pytest.approx(2.0)
    blocked_sec = next(line["start_us"] / 1e6 for line in lines if line["event"] == "event_loop_block")
    kinds = set()
    for request, free in ends[0].items():
        kinds.add((free > blocked_sec) + (free > blocked_sec + 2.0))
        assert ends[1][request] == pytest.approx(
            blocked_sec + 2.0 if blocked_sec < free < blocked_sec + 2.0 else free, abs=1e-4
        )
    assert kinds == {0, 1, 2}


def test_requests_do_nothing_while_their_loop_is_blocked_and_the_engine_goes_on() -> None:
    cause = BlockedLoop(1, 0, at_sec=2.0, seconds=3.0)
    shape = RunShape(steps=1, workers=1, requests=20, engine=Engine(load_sec=1e-3))
    [step], [free] = play_run(shape, [cause]), play_run(shape)
    happened = step.workers[0].happened
    [block] = [event for event in happened if event.event == "event_loop_block"]
    times = {time_sec for event in happened for time_sec in (event.start, event.end)}
    assert not any(block.start < time_sec < block.end for time_sec in times)
    assert any(block.start < call.served.end < block.end for call in step.workers[0].calls)
    assert step.wall_sec - free.wall_sec < 3.0


def test_a_loop_that_is_blocked_after_generation_blocks_nothing() -> None:
    shape = RunShape(steps=1, workers=1, requests=3)
    [step], [free] = play_run(shape, [BlockedLoop(1, 0, at_sec=1e4)]), play_run(shape)
    assert step == free


def test_a_hang_leaves_open_spans_and_no_closing_record(tmp_path: Path) -> None:
    run = open_run(synthetic_run(tmp_path, steps=3, workers=2, requests=6, causes=[Hang(2, 1)]))
    assert run.steps == [1, 2]
    assert run.health.unclosed == [(2, False, 0), (2, False, 1)]
    assert run.health.open_spans == 6
    assert run.records.filter(step=2, event="total_step_duration").is_empty()


def test_a_torn_file_costs_one_line(tmp_path: Path) -> None:
    whole = open_run(synthetic_run(tmp_path / "whole", steps=2, workers=2, requests=6))
    torn = open_run(synthetic_run(tmp_path / "torn", steps=2, workers=2, requests=6, causes=[TornFile(2, 1)]))
    assert torn.health.torn == 1
    assert torn.records.equals(whole.records)


def test_a_skewed_clock_moves_one_worker_and_changes_no_duration(tmp_path: Path) -> None:
    even = open_run(synthetic_run(tmp_path / "even", steps=1, workers=2, requests=6)).records
    skewed = synthetic_run(tmp_path / "skewed", steps=1, workers=2, requests=6, clock_skew={1: 2.5})
    moved = open_run(skewed).records
    assert moved["duration_sec"].equals(even["duration_sec"])
    assert (moved["start_us"] - even["start_us"]).to_list() == [
        2_500_000 if worker == 1 else 0 for worker in even["worker"]
    ]


def test_engines_log_each_call_on_their_own_clock(tmp_path: Path) -> None:
    clocks = {0: 0.0, 1: 30.0}
    shape = RunShape(steps=3, workers=2, requests=8, engine=Engine(most_running=4), engine_clocks=clocks)
    run = open_run(write_run(tmp_path, shape))
    ahead = ahead_us(run)
    assert ahead.keys() == {"server_1", "scheduler_1", "detokenizer_1"}
    assert ahead["server_1"] == pytest.approx(30e6, abs=0.05e6)
    lives = engine_request_table(run)
    turns = run.digest.turns.group_by("step").len().sort("step").rows()
    assert lives.group_by("step").len().sort("step").rows() == turns
    calls = [call for step in play_run(shape) for worker in step.workers for call in worker.calls]
    queued = sum(call.served.admitted - call.start for call in calls)
    share = queued / sum(call.served.end - call.start for call in calls)
    assert share > 0.1
    assert shares(lives)["queue"] == pytest.approx(share, rel=0.05)
    assert findings_of(run, over=False) == []


def test_engines_change_nothing_that_workers_measured(tmp_path: Path) -> None:
    plain = open_run(synthetic_run(tmp_path / "plain", steps=2, workers=2, requests=8))
    with_engines = open_run(
        synthetic_run(tmp_path / "told", steps=2, workers=2, requests=8, engine_clocks={0: 5.0})
    )
    assert step_table(plain.digest).equals(step_table(with_engines.digest))
