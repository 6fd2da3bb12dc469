"""The verdict finds planted causes, names their places, and accuses nothing else."""

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from other_runs import OtherRun

from sglang_instrument.analysis import open_run
from sglang_instrument.analysis.verdict.verdict import Finding, findings_of, verdict_of
from sglang_instrument.demo.synthetic import write
from sglang_instrument.testing import Cause, Hang, HeldLoop, Plateau, SlowEngine, SlowReward, synthetic_run


def found_in(seed: int, **shape: Any) -> list[Finding]:
    with TemporaryDirectory() as folder:
        synthetic_run(folder, steps=6, workers=4, requests=16, seed=seed, **shape)
        run = open_run(folder)
        return findings_of(run, over=False)


@pytest.mark.parametrize(
    ("cause", "planted"),
    [
        ("straggler", SlowEngine(3, 2, 2.0)),
        ("slow_reward", SlowReward(3, 2, 10.0)),
        ("blocked_loop", HeldLoop(3, 2, 5.0, 5.0)),
        ("plateau", Plateau(3, 2, 20.0, 80.0, 8)),
        ("hang", Hang(3, 2)),
    ],
)
def test_a_planted_cause_is_found_and_nobody_else_accused(cause: str, planted: Cause) -> None:
    for seed in range(3):
        found = found_in(seed, causes=[planted])
        assert cause in [one.cause for one in found]
        assert {(one.step, one.worker) for one in found} == {(3, 2)}


def test_clean_runs_are_not_accused_of_anything() -> None:
    # A sample; benchmarks/recall.py tries a thousand.
    assert [found_in(seed) for seed in range(12)] == [[]] * 12


def test_a_skewed_clock_is_no_cause() -> None:
    assert found_in(1, clock_skew={2: 100.0}) == []


def test_the_verdict_on_step_67_is_the_story_of_the_readme(tmp_path: Path) -> None:
    write(tmp_path)
    run = open_run(tmp_path, cached=False)
    assert verdict_of(run, over=False) == (
        "step 67: worker 0 arrived 160 s late; 109 of its 512 requests stood still from 19 s to 166 s, "
        "in turn 2 (turn_engine_call)"
    )


def test_a_clean_run_is_told_so_with_its_slowest_step(tmp_path: Path) -> None:
    run = open_run(synthetic_run(tmp_path, steps=3, workers=2, requests=6))
    assert verdict_of(run, over=False).startswith("nothing out of the ordinary; the slowest step is ")


def test_clean_runs_of_a_kind_that_nobody_tuned_for_are_not_accused_either() -> None:
    for seed in range(8):
        with TemporaryDirectory() as folder:
            run = open_run(OtherRun(seed).write(Path(folder)))
            assert findings_of(run, over=False) == []


@pytest.mark.parametrize(("kind", "cause"), [("engine", "straggler"), ("tool", "slow_tool")])
def test_a_slow_worker_of_another_kind_of_run_is_found(kind: str, cause: str, tmp_path: Path) -> None:
    run = open_run(OtherRun(2, slow=(kind, 3, 2, 6.0)).write(tmp_path))
    found = findings_of(run, over=False)
    assert cause in [one.cause for one in found]
    assert {(one.step, one.worker) for one in found} == {(3, 2)}


def write_requests(folder: Path, step: int, worker: int, tools: list[float], token_sec: float = 0.01) -> None:
    """Write a step of requests with one reply of 100 tokens and one tool call each, side by side."""
    lines: list[dict[str, Any]] = []

    def add(event: str, start: float, end: float, task: int, **extra: Any) -> None:
        times = {"duration_sec": end - start, "start_us": int((1_767_600_000 + step * 1000 + start) * 1e6)}
        ids = {"workid": worker, "step": step, "task": task, **({"spawned_by": 0} if task else {})}
        fields = {"extra": extra} if extra else {}
        lines.append({"timestamp": "2026-01-05T08:00:00+00:00", "event": event, **times, **fields, **ids})

    for number, tool in enumerate(tools):
        ids = {"request_id": f"{step}.{worker}.{number}"}
        replied = 100 * token_sec * (1 + number % 3 / 100)
        add("turn_engine_call", 0, replied, 1 + number, **ids, turn=0, generated_tokens=100)
        add("tool_execution", replied, replied + tool, 1 + number, **ids, turn=0)
        told = {"turns": 1, "actual_response_tokens": 100}
        add("async_rollout_request_complete", 0, replied + tool, 1 + number, **ids, **told)
    add("total_step_duration", 0, max(line["duration_sec"] for line in lines) + 0.1, 0)
    path = folder / f"step_{step}" / f"worker_{worker}.jsonl"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def usual_tools(step: int, worker: int) -> list[float]:
    return [0.1 + 0.01 * ((number * 7 + step * 3 + worker) % 11) for number in range(12)]


def test_one_tool_call_that_takes_far_longer_than_any_other_is_found(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        for worker in (0, 1):
            tools = usual_tools(step, worker)
            write_requests(tmp_path, step, worker, [8.0, *tools[1:]] if (step, worker) == (2, 1) else tools)
    run = open_run(tmp_path)
    (found,) = findings_of(run, over=False)
    assert (found.cause, found.step, found.worker) == ("slow_tool", 2, 1)
    assert found.evidence["request_id"] == "2.1.0"
    assert found.lost_sec == pytest.approx(7.8, abs=0.05)


def test_a_tool_call_that_merely_waits_for_a_held_loop_is_not_accused_beside_who_held_it(
    tmp_path: Path,
) -> None:
    for step in (1, 2, 3):
        for worker in (0, 1):
            tools = usual_tools(step, worker)
            write_requests(tmp_path, step, worker, [8.0, *tools[1:]] if (step, worker) == (2, 1) else tools)
    block = {"timestamp": "2026-01-05T08:00:00+00:00", "event": "event_loop_block", "duration_sec": 7.85}
    block |= {"start_us": 1_767_602_001_000_000, "workid": 1, "step": 2, "extra": {"stack": ["a/b.py:3 c"]}}
    with (tmp_path / "step_2" / "worker_1.jsonl").open("a") as file:
        file.write(json.dumps(block) + "\n")
    run = open_run(tmp_path)
    (found,) = findings_of(run, over=False)
    assert (found.cause, found.step, found.worker) == ("blocked_loop", 2, 1)


def test_a_worker_whose_tools_are_all_slow_is_found_among_few_steps(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        for worker in (0, 1):
            slower = 2.0 if (step, worker) == (2, 1) else 0.0
            write_requests(tmp_path, step, worker, [slower + sec for sec in usual_tools(step, worker)])
    run = open_run(tmp_path)
    (found,) = findings_of(run, over=False)
    assert (found.cause, found.step, found.worker) == ("slow_tool", 2, 1)


def test_a_step_that_is_slow_for_all_its_workers_is_nobodys_fault(tmp_path: Path) -> None:
    for step in range(1, 7):
        for worker in range(4):
            token_sec = 0.05 if step == 4 else 0.01
            write_requests(tmp_path, step, worker, usual_tools(step, worker), token_sec)
    run = open_run(tmp_path)
    assert findings_of(run, over=False) == []
