"""Each detector names what was slow, and whom it concerns: one worker, several, all, or nobody."""

import json
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

import polars as pl
import pytest
from scipy.special import bdtrc

from sglang_instrument.analysis import open_run
from sglang_instrument.analysis.verdict.evidence.chance import (
    Draws,
    chance_beyond,
    chance_of_so_many,
    tail_of,
)
from sglang_instrument.analysis.verdict.evidence.finding import Finding
from sglang_instrument.analysis.verdict.verdict import findings_of
from sglang_instrument.testing import SlowEngine, synthetic_run
from sglang_instrument.testing.causes import BlockedLoop, Cause, ColdStart, SlowPart, SlowTools, StandStill

BEGUN = 1_767_600_000  # seconds, of step 0


def found_in(folder: Path, *causes: str) -> list[Finding]:
    """Return the findings of a run that have one of these causes."""
    findings = findings_of(open_run(folder, cached=False), over=False)
    return [finding for finding in findings if finding.cause in causes]


def write_parts(
    folder: Path, step: int, worker: int, parts: Sequence[tuple[str, float]], begin: float = 0.0
) -> None:
    """Write a step of a worker that does these events one after the other, for so many seconds."""
    lines, now = [], begin
    for event, sec in parts:
        lines.append(_line(event, step, worker, now, now + sec))
        now += sec
    lines.append(_line("total_step_duration", step, worker, begin, now))
    _write(folder / f"step_{step}" / f"worker_{worker}.jsonl", lines)


def write_replies(folder: Path, step: int, tokens: Sequence[int], validate: bool = False) -> None:
    """Write a step of one worker with one request for each reply; a token takes 10 ms."""
    lines = []
    for number, written in enumerate(tokens):
        end, ids = written * 0.01, {"request_id": f"{step}.{validate}.{number}"}
        reply = {**ids, "turn": 0, "generated_tokens": written}
        lines.append(_line("turn_engine_call", step, 0, 0, end, task=1 + number, extra=reply))
        of_request = {**ids, "turns": 1, "actual_response_tokens": written}
        lines.append(
            _line("async_rollout_request_complete", step, 0, 0, end, task=1 + number, extra=of_request)
        )
    lines.append(_line("total_step_duration", step, 0, 0, max(tokens) * 0.01 + 0.1))
    _write(folder / f"{'validate' if validate else 'step'}_{step}" / "worker_0.jsonl", lines)


def _line(event: str, step: int, worker: int, start: float, end: float, **more: Any) -> dict[str, Any]:
    times = {"duration_sec": end - start, "start_us": int((BEGUN + step * 1000 + start) * 1e6)}
    return {
        "timestamp": "2026-01-05T08:00:00+00:00",
        "event": event,
        **times,
        "workid": worker,
        "step": step,
    } | {
        "task": 0,
        **more,
    }


def _write(path: Path, lines: list[dict[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


@pytest.mark.parametrize(
    "causes",
    [
        [SlowEngine(4, worker, 6.0) for worker in (1, 2)],
        [SlowTools(4, worker, 40.0) for worker in (1, 2)],
        [SlowPart(4, worker, 60.0) for worker in (1, 2)],
        [BlockedLoop(4, worker, 3.0, 60.0) for worker in (1, 2)],
        [StandStill(4, worker, 30.0, 3.0) for worker in (1, 2)],
    ],
    ids=["engine", "tool", "preprocess", "blocked-loop", "standstill"],
)
def test_two_slow_workers_of_four_do_not_hide_each_other(causes: list[Cause], tmp_path: Path) -> None:
    run = synthetic_run(tmp_path / "run", steps=6, workers=4, requests=12, causes=causes)
    findings = found_in(run, causes[0].cause)
    assert {(finding.step, finding.worker) for finding in findings} == {(4, 1), (4, 2)}


def test_loops_blocked_on_all_workers_are_a_finding_of_the_step(tmp_path: Path) -> None:
    cause = BlockedLoop(3, None, 2.0, 20.0)
    run = synthetic_run(tmp_path / "run", steps=4, workers=3, requests=6, causes=[cause])
    (finding,) = found_in(run, "blocked-loop")
    assert (finding.scope, finding.step, finding.worker) == ("step", 3, None)
    assert "3 of 3 workers" in finding.sentence


def test_two_loops_of_a_process_that_block_at_once_are_blocked_once(tmp_path: Path) -> None:
    cause = BlockedLoop(3, 1, 2.0, 20.0)
    run = synthetic_run(tmp_path / "run", steps=4, workers=3, requests=6, causes=[cause])
    log = run / "step_3" / "worker_1.jsonl"
    lines = log.read_text().splitlines()
    (index,) = (number for number, line in enumerate(lines) if "event_loop_block" in line)
    log.write_text("\n".join([*lines[:index], lines[index], *lines[index:]]) + "\n")
    (finding,) = found_in(run, "blocked-loop")
    assert finding.evidence["blocked_sec"] == pytest.approx(20.0, abs=0.1)


@pytest.mark.parametrize(
    ("cpu_sec", "words"), [(19.0, "held the interpreter's lock"), (0.1, "was stopped, had no core")]
)
def test_a_block_of_a_loop_whose_code_was_not_seen_is_explained_by_the_cpu_of_its_process(
    tmp_path: Path, cpu_sec: float, words: str
) -> None:
    run = synthetic_run(
        tmp_path / "run", steps=4, workers=3, requests=6, causes=[BlockedLoop(3, 1, 2.0, 20.0)]
    )
    log = run / "step_3" / "worker_1.jsonl"
    records = [json.loads(line) for line in log.read_text().splitlines()]
    (block,) = (record for record in records if record["event"] == "event_loop_block")
    block["extra"] = {"lag_sec": block["extra"]["lag_sec"], "cpu_sec": cpu_sec}
    log.write_text("".join(json.dumps(record) + "\n" for record in records))
    (finding,) = found_in(run, "blocked-loop")
    assert (finding.step, finding.worker) == (3, 1)
    assert words in finding.sentence
    assert finding.evidence["cpu_sec"] == cpu_sec


def test_what_only_one_worker_does_is_not_said_of_most(tmp_path: Path) -> None:
    for step in range(1, 9):
        for worker in range(4):
            update = [("weights_update", 20.0 if step == 5 else 2.0)] if worker == 0 else []
            parts = [("preprocessing_duration", 1.0 + worker / 100), *update]
            write_parts(tmp_path, step, worker, [*parts, ("barrier", 0.01 if update else 2.01)])
    (finding,) = found_in(tmp_path, "weights", "other", "post-processing")
    assert (finding.scope, finding.step, finding.worker) == ("step", 5, None)
    assert "on 1 of 4 workers, the only one to do it" in finding.sentence


def test_a_barrier_that_itself_takes_long_is_found(tmp_path: Path) -> None:
    for step in range(1, 9):
        for worker in range(4):
            took = 60.0 if step == 5 else 0.01
            write_parts(tmp_path, step, worker, [("preprocessing_duration", 5.0), ("barrier", took)])
    (finding,) = found_in(tmp_path, "barrier")
    assert (finding.scope, finding.step, finding.worker) == ("step", 5, None)
    assert finding.lost_sec == pytest.approx(60.0, abs=0.5)


def test_waiting_for_a_worker_without_a_file_is_no_slow_barrier(tmp_path: Path) -> None:
    for step in range(1, 9):
        for worker in range(4):
            busy = 60.0 if (step, worker) == (5, 2) else 5.0
            waited = 60.1 - busy if step == 5 else 0.1
            write_parts(tmp_path, step, worker, [("preprocessing_duration", busy), ("barrier", waited)])
    (tmp_path / "step_5" / "worker_2.jsonl").unlink()
    assert found_in(tmp_path, "barrier") == []


def test_a_lone_worker_with_slow_calls_is_not_accused(tmp_path: Path) -> None:
    for step in range(1, 7):
        tokens = [100 + 10 * number for number in range(20)]
        write_replies(tmp_path, step, tokens)
    log = tmp_path / "step_4" / "worker_0.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for line in [*lines[:4], lines[-1]]:
        line["duration_sec"] += 40
    _write(log, lines)
    (finding,) = found_in(tmp_path, "slow-calls", "standstill")
    assert (finding.cause, finding.scope, finding.step, finding.worker) == ("slow-calls", "step", 4, None)


def test_a_worker_that_begins_late_is_found(tmp_path: Path) -> None:
    for step in range(1, 9):
        for worker in range(4):
            late = 30.0 if (step, worker) == (5, 2) else 0.02 * worker
            parts = [("preprocessing_duration", 5.0), ("barrier", 30.1 if step == 5 else 0.1)]
            parts[1] = ("barrier", (30.1 if step == 5 else 0.1) - late)
            write_parts(tmp_path, step, worker, parts, late)
    (finding,) = found_in(tmp_path, "late-start")
    assert (finding.scope, finding.step, finding.worker) == ("worker", 5, 2)
    assert "worker 2 began 30 s later than the first worker" in finding.sentence
    assert finding.lost_sec == pytest.approx(30.0, abs=0.5)


def test_time_without_a_record_is_called_so(tmp_path: Path) -> None:
    for step in range(1, 9):
        for worker in range(4):
            parts = [("preprocessing_duration", 5.0), ("total_step_duration", 40.0 if step == 5 else 2.0)]
            write_parts(tmp_path, step, worker, parts)
    (finding,) = found_in(tmp_path, "unaccounted")
    assert "time that no recorded part of total_step_duration covers" in finding.sentence


def test_times_that_vary_widely_accuse_nobody(tmp_path: Path) -> None:
    random = Random(1)
    for step in range(1, 9):
        for worker in range(6):
            took = (
                5.0 * random.uniform(0.95, 1.05) * (random.choice([2, 4, 8]) if random.random() < 0.06 else 1)
            )
            write_parts(tmp_path, step, worker, [("preprocessing_duration", took)])
    assert [finding for finding in found_in(tmp_path, "preprocess") if finding.scope == "worker"] == []


def test_a_worker_that_is_slow_in_all_steps_is_named_in_all(tmp_path: Path) -> None:
    for step in range(1, 9):
        for worker in range(4):
            took = (10.0 if worker == 2 else 2.0) * (1 + (step * 7 + worker * 3) % 5 / 100)
            write_parts(tmp_path, step, worker, [("preprocessing_duration", took)])
    findings = found_in(tmp_path, "preprocess")
    assert {(finding.step, finding.worker) for finding in findings} == {(step, 2) for step in range(1, 9)}


def test_a_torn_file_names_no_dead_worker_where_the_others_passed_the_barrier(tmp_path: Path) -> None:
    run = synthetic_run(tmp_path / "run", steps=4, workers=3, requests=12)
    log = run / "step_4" / "worker_1.jsonl"
    log.write_bytes(log.read_bytes()[:-6000])
    assert [finding for finding in findings_of(open_run(run), over=True) if finding.cause == "death"] == []


def test_longer_replies_of_validations_do_not_hide_one_in_training(tmp_path: Path) -> None:
    random = Random(3)
    for step in range(1, 5):
        replies = [random.randint(100, 300) for _ in range(16)]
        write_replies(tmp_path, step, [*replies, 10_000] if step == 3 else replies)
        write_replies(tmp_path, step, [random.randint(11_000, 12_000) for _ in range(16)], validate=True)
    (finding,) = found_in(tmp_path, "long-replies")
    assert (finding.scope, finding.step, finding.validate) == ("request", 3, False)


def test_a_worker_that_is_far_slower_than_the_cold_first_step_is_named(tmp_path: Path) -> None:
    causes = [ColdStart(1.3, 3.0), SlowEngine(1, 2, 4.0)]
    run = synthetic_run(tmp_path / "run", steps=6, workers=4, requests=16, causes=causes)
    assert [(finding.step, finding.worker) for finding in found_in(run, "engine")] == [(1, 2)]
    assert [finding.step for finding in found_in(run, "cold-start")] == [1]


def test_a_slow_call_tells_its_turn(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        write_replies(tmp_path, step, [100 + 10 * number for number in range(20)])
    log = tmp_path / "step_2" / "worker_0.jsonl"
    lines = [json.loads(line) for line in log.read_text().splitlines()]
    for line in lines:
        if line.get("extra", {}).get("request_id") == "2.False.3":
            line["duration_sec"] += 30
    lines[-1]["duration_sec"] += 30
    _write(log, lines)
    (finding,) = found_in(tmp_path, "slow-call")
    assert (finding.request_id, finding.evidence["turn"]) == ("2.False.3", 0)


def test_the_chance_to_reach_a_value_counts_all_but_the_owner_s() -> None:
    random = Random(5)
    values = [round(random.paretovariate(3), 1) for _ in range(300)]
    of_owner, reached = [values[number] for number in range(0, 300, 7)], 2.0
    others = [value for number, value in enumerate(values) if number % 7]
    draws = Draws(pl.Series(values))
    chance = draws.chance_to_reach(reached, pl.Series(of_owner).sort().to_numpy())
    assert chance == (sum(value >= reached for value in others) + 1) / (len(others) + 1)
    beyond = max(others) + 1
    tail = chance_beyond(tail_of(pl.Series(others)), beyond) / (len(others) + 1)
    mine = pl.Series([*of_owner, beyond, beyond]).sort()
    draws = Draws(pl.Series([*values, beyond, beyond]))
    assert draws.chance_to_reach(beyond, mine.to_numpy()) == pytest.approx(tail)


def test_the_chance_of_so_many_is_the_binomial_distribution_s() -> None:
    random = Random(11)
    for _ in range(2000):
        of = random.choice([1, 3, 10, 64, 3000])
        number, share = random.randint(0, of), random.choice([0.0, 1.0, random.random(), 1e-6])
        expected = 1.0 if number == 0 else bdtrc(number - 1, of, share)
        assert chance_of_so_many(number, of, share) == pytest.approx(expected, rel=1e-9, abs=1e-300)
    assert chance_of_so_many(4, 3, 0.5) == 0.0
