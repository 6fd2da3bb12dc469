"""Small logs whose right answer follows by arithmetic: what grew is named with its seconds, or nothing is.

Every step of a worker has `REQUESTS` requests that begin together; a turn is one engine call of 1 s.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hand_written import record, request, write_file

from sglang_instrument.analysis import findings_of, open_run
from sglang_instrument.analysis.verdict.evidence.finding import Finding

WORKERS, STEPS, REQUESTS = 2, 6, 10
TOOL_SEC, CALL_SEC, TRAIN_SEC = 2.0, 1.0, 20.0

Turns = Callable[[int, int, int], int]
Tool = Callable[[int, int], float]


def two_turns(step: int, worker: int, number: int) -> int:
    return 2


def usual_tool(step: int, worker: int) -> float:
    return TOOL_SEC


def write_batches(folder: Path, turns: Turns = two_turns, tool: Tool = usual_tool) -> Path:
    """Write a run of batches: each request has so many turns, and a tool of so many seconds after each."""
    begin = 0.0
    for step in range(1, STEPS + 1):
        ends = [begin]
        for worker in range(WORKERS):
            spans: list[dict[str, Any]] = []
            for number in range(REQUESTS):
                spans += request_spans(
                    f"r{step}-{worker}-{number}", begin, turns(step, worker, number), tool(step, worker)
                )
            end = max(span["start_us"] / 1e6 + span["duration_sec"] for span in spans) - 1_767_600_000
            ends.append(end)
            write_file(folder, step, worker, [*spans, record("total_step_duration", begin, end, task=0)])
        begin = max(ends) + 5.0
    return folder


def request_spans(name: str, begin: float, turns: int, tool_sec: float) -> list[dict[str, Any]]:
    """Return the records of a request; a tenth of a second passes at its begin and its end."""
    spans, now, task = [], begin + 0.1, 1 + sum(map(ord, name)) % 1000 + int(name[-1]) * 1000
    for turn in range(turns):
        extra = {"request_id": name, "turn": turn}
        call, after = now + CALL_SEC, now + CALL_SEC + tool_sec
        spans.append(
            record("turn_engine_call", now, call, extra={**extra, "response_tokens": 100}, task=task)
        )
        spans.append(record("tool_execution", call, after, extra={**extra, "tool": "search"}, task=task))
        now = after
    extra = {"request_id": name, "turns": turns, "response_tokens": 100 * turns}
    whole = record("async_rollout_request_complete", begin, now + 0.1, extra=extra, task=task, spawned_by=0)
    return [*spans, whole]


def found_in(folder: Path) -> list[Finding]:
    return findings_of(open_run(folder, cached=False), over=True)


def test_requests_that_are_alike_in_all_steps_accuse_nobody(tmp_path: Path) -> None:
    assert found_in(write_batches(tmp_path)) == []


def test_tools_that_take_longer_from_a_step_on_are_a_shift(tmp_path: Path) -> None:
    def slower(step: int, worker: int) -> float:
        return TOOL_SEC if step < 4 else 3 * TOOL_SEC

    first = found_in(write_batches(tmp_path, tool=slower))[0]
    assert first.event == "tool"
    assert (first.scope, first.step, first.worker) == ("run", None, None)
    assert first.evidence["first_step"] == 4
    assert first.evidence["times"] == pytest.approx(3.0, rel=0.01)
    # Two turns wait 4 s longer each, and all requests of a step run at once.
    assert first.lost_sec == pytest.approx(2 * 2 * TOOL_SEC, rel=0.02)


def test_tools_that_take_longer_in_one_step_are_no_shift(tmp_path: Path) -> None:
    def slower(step: int, worker: int) -> float:
        return 3 * TOOL_SEC if step == 4 else TOOL_SEC

    first = found_in(write_batches(tmp_path, tool=slower))[0]
    assert (first.cause, first.step) == ("tool", 4)


def test_a_step_with_twice_the_turns_is_told_by_its_turns(tmp_path: Path) -> None:
    def more(step: int, worker: int, number: int) -> int:
        return (4 if step == 3 else 2) + number % 2

    first = found_in(write_batches(tmp_path, turns=more))[0]
    assert (first.cause, first.step, first.worker) == ("more-turns", 3, None)
    assert first.evidence["times"] == pytest.approx(4.5 / 2.5, rel=0.01)


def test_as_many_turns_in_every_step_are_not_told(tmp_path: Path) -> None:
    def mixed(step: int, worker: int, number: int) -> int:
        return 2 + number % 3

    assert found_in(write_batches(tmp_path, turns=mixed)) == []


def write_loop(
    folder: Path, train_sec: Callable[[int], float], wait_sec: Callable[[int], float], steps: int = 8
) -> Path:
    """Write an asynchronous loop: requests run beside the trainer, but for a wait at the end of its work.

    The trainer trains, gets a batch after 5 s, and sends weights in 1 s. Requests of 4 s follow each other on
    eight lanes while the rollout may begin some. No span of a worker tells of a whole step.
    """
    begin, busy_until = 0.0, [0.5 * lane for lane in range(8)]
    for step in range(steps):
        trained = begin + train_sec(step)
        sent = trained + 5.0
        spans = [
            record("trainer_update_actor", begin, trained, task=0),
            record("trainer_generate", trained, sent, task=0),
            record("weights_update", sent, sent + 1.0, task=0),
            record("trainer_step", begin, sent + 1.0, task=0),
        ]
        write_trainer(folder, step, spans)
        requests: list[list[dict[str, Any]]] = [[] for _ in range(WORKERS)]
        for lane in range(8):
            while (
                busy_until[lane] < trained - wait_sec(step) - 2.0 or trained - 2.0 <= busy_until[lane] < sent
            ):
                start = busy_until[lane]
                name = f"{step}-{lane}-{start:.1f}"
                requests[lane % WORKERS].append(request(name, start, start + 4.0))
                busy_until[lane] = start + 4.0
            busy_until[lane] = max(busy_until[lane], trained if wait_sec(step) else 0.0)
        for worker, of_worker in enumerate(requests):
            write_file(folder, step, worker, of_worker)
        begin = sent + 1.0
    return folder


def write_trainer(folder: Path, step: int, spans: list[dict[str, Any]]) -> None:
    """Write the file of the trainer as that of a worker, under its own name."""
    path = write_file(folder / "trainer", step, 0, spans)
    target = folder / f"step_{step}" / "trainer_0.jsonl"
    target.parent.mkdir(parents=True, exist_ok=True)
    path.rename(target)
    path.parent.rmdir()
    path.parent.parent.rmdir()


def test_a_long_update_beside_the_rollout_is_told_of_the_trainer(tmp_path: Path) -> None:
    def long(step: int) -> float:
        return TRAIN_SEC + (30.0 if step == 4 else 0.1 * step)

    first = found_in(write_loop(tmp_path, long, lambda step: 0.0))[0]
    assert (first.cause, first.step, first.event) == ("slow-trainer", 4, "trainer_update_actor")
    assert first.lost_sec == pytest.approx(30.0, abs=0.5)


def test_a_trainer_that_takes_as_long_in_every_step_is_not_told(tmp_path: Path) -> None:
    folder = write_loop(tmp_path, lambda step: TRAIN_SEC + 0.1 * step, lambda step: 0.0)
    assert [finding for finding in found_in(folder) if finding.lost_sec > 0 and finding.scope != "run"] == []


def test_a_rollout_that_waits_from_a_step_on_though_the_trainer_works_as_long_has_a_tighter_bound(
    tmp_path: Path,
) -> None:
    folder = write_loop(tmp_path, lambda step: TRAIN_SEC + 0.1 * step, lambda step: 12.0 * (step >= 4))
    [bound] = [finding for finding in found_in(folder) if finding.cause == "staleness-bound"]
    assert bound.evidence["first_step"] == 4
    assert bound.evidence["before_sec"] == pytest.approx(0.0, abs=0.5)
    assert 6.0 < bound.lost_sec <= 12.0


def test_a_rollout_that_waits_in_every_step_is_a_shape_and_no_bound(tmp_path: Path) -> None:
    folder = write_loop(tmp_path, lambda step: TRAIN_SEC + 0.1 * step, lambda step: 12.0)
    assert "staleness-bound" not in {finding.cause for finding in found_in(folder)}
