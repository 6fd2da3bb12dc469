"""The verdict finds planted causes, names their places, and accuses nothing else."""

import json
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from clean_shapes import CLEAN_SHAPES
from other_runs import OtherRun
from planted_runs import is_right, workers_of

from sglang_instrument.analysis import open_run
from sglang_instrument.analysis.run.opening import Run
from sglang_instrument.analysis.verdict.detectors import DETECTORS
from sglang_instrument.analysis.verdict.evidence.detector import Explained, Findings
from sglang_instrument.analysis.verdict.evidence.finding import Finding
from sglang_instrument.analysis.verdict.evidence.run_evidence import Evidence
from sglang_instrument.analysis.verdict.overlaps import findings_in
from sglang_instrument.analysis.verdict.verdict import findings_of, verdict_of
from sglang_instrument.testing import synthetic_run
from sglang_instrument.testing.kinds import KINDS, sized, wall_of
from sglang_instrument.testing.synthetic import write_run
from sglang_instrument.testing.usual_run import usual_shape

FEW = 12  # requests of a worker: benchmarks/recall.py tries hundreds of runs with four times as many


def found_in(folder: Path) -> list[Finding]:
    return findings_of(open_run(folder, cached=False), over=True)


def accused(findings: list[Finding]) -> list[Finding]:
    """Return the findings that blame a worker; a long reply is drawn by chance."""
    return [finding for finding in findings if finding.worker is not None and finding.cause != "long-replies"]


@pytest.mark.parametrize("name", KINDS)
def test_a_cause_that_costs_half_of_its_step_is_the_first_finding(name: str, tmp_path: Path) -> None:
    kind = KINDS[name]
    shape = replace(kind.shape(0), requests=FEW)
    cause = sized(kind, shape, 0.5)
    run = open_run(write_run(tmp_path / "run", shape, [cause]), cached=False)
    findings = findings_of(run, over=True)
    assert is_right(findings[0], cause)
    assert {(finding.step, finding.worker) for finding in accused(findings)} <= {
        (cause.place[0], worker) for worker in workers_of(cause)
    }
    assert findings[0].advice
    assert_the_order_of_detectors_changes_nothing(run)


def test_tools_that_are_slow_together_are_one_finding_which_costs_what_all_of_them_do(tmp_path: Path) -> None:
    kind = KINDS["tool-all"]
    shape = kind.shape(0)
    cause = sized(kind, shape, 0.5)
    first = found_in(write_run(tmp_path / "run", shape, [cause]))[0]
    usual_sec = wall_of(shape, cause.place[0])
    assert first.lost_sec == pytest.approx(wall_of(shape, cause.place[0], [cause]) - usual_sec, rel=0.25)
    assert first.evidence["tool"] == "calculator, search"
    assert "2 tools took " in first.sentence


def assert_the_order_of_detectors_changes_nothing(run: Run) -> None:
    """Call all detectors in two orders, and each alone twice, on one evidence."""
    evidence = Evidence.of(run, over=True)
    findings, calls = findings_in(evidence), evidence.calls.clone()
    random = Random(1)
    assert findings_in(evidence, random.sample(DETECTORS, len(DETECTORS))) == findings
    alone = {detector.name: plain(detector(evidence)) for detector in DETECTORS}
    for detector in random.sample(DETECTORS, len(DETECTORS)):
        assert plain(detector(evidence)) == alone[detector.name]
    assert evidence.calls.equals(calls)


def plain(answers: Findings) -> list[tuple[Finding, list[Any]]]:
    """Return findings with the time that each explains, so that they can be compared."""
    pairs = [
        (answer.finding, answer.calls) if isinstance(answer, Explained) else (answer, None)
        for answer in answers
    ]
    return [
        (finding, [] if calls is None else calls.select("row", "excess_sec").sort("row").rows())
        for finding, calls in pairs
    ]


@pytest.mark.parametrize("name", CLEAN_SHAPES)
def test_a_clean_run_accuses_nobody(name: str, tmp_path: Path) -> None:
    clean = CLEAN_SHAPES[name](0)
    shape = replace(clean.shape, requests=min(FEW, clean.shape.requests))
    findings = found_in(write_run(tmp_path / "run", shape, clean.causes))
    assert accused(findings) == []
    assert {finding.cause for finding in findings} <= clean.words


@pytest.mark.parametrize("seed", [1, 5])
def test_a_clean_run_of_another_generator_accuses_nobody(seed: int, tmp_path: Path) -> None:
    assert accused(found_in(OtherRun(seed).write(tmp_path))) == []


@pytest.mark.parametrize("kind", ["engine", "tool"])
def test_a_slow_worker_of_another_generator_is_found(kind: str, tmp_path: Path) -> None:
    findings = found_in(OtherRun(2, slow=(kind, 3, 2, 6.0)).write(tmp_path))
    assert findings[0].cause == kind
    assert {(finding.step, finding.worker) for finding in accused(findings)} == {(3, 2)}


def test_a_clean_run_is_told_so_with_its_slowest_step_and_that_it_is_short(tmp_path: Path) -> None:
    verdict = verdict_of(
        open_run(synthetic_run(tmp_path, steps=3, workers=2, requests=6, seed=0)), over=False
    )
    assert verdict.startswith("nothing out of the ordinary; step 2, the slowest, took 23 s")
    assert verdict.endswith("(3 steps of 2 workers: too little to compare)")


def test_the_same_cause_in_several_steps_is_told_once(tmp_path: Path) -> None:
    shape = replace(usual_shape(0), requests=FEW)
    kind = KINDS["engine-one"]
    cause = sized(kind, shape, 0.5)
    causes = [type(cause)(step, 2, cause.factor) for step in (3, 6, 8)]  # type: ignore[attr-defined, call-arg]
    verdict = verdict_of(open_run(write_run(tmp_path / "run", shape, causes)), over=True)
    assert "worker 2 in 3 of 10 steps" in verdict


def write_requests(folder: Path, step: int, worker: int, tools: list[float], token_sec: float = 0.01) -> None:
    """Write a step of requests with one reply of 100 to 120 tokens and one tool call each, side by side."""
    lines: list[dict[str, Any]] = []

    def add(event: str, start: float, end: float, task: int, **extra: Any) -> None:
        times = {"duration_sec": end - start, "start_us": int((1_767_600_000 + step * 1000 + start) * 1e6)}
        ids = {"workid": worker, "step": step, "task": task, **({"spawned_by": 0} if task else {})}
        fields = {"extra": extra} if extra else {}
        lines.append({"timestamp": "2026-01-05T08:00:00+00:00", "event": event, **times, **fields, **ids})

    for number, tool in enumerate(tools):
        ids = {"request_id": f"{step}.{worker}.{number}"}
        tokens = 100 + number % 3 * 10
        replied = tokens * token_sec * (1 + number % 3 / 100)
        add("turn_engine_call", 0, replied, 1 + number, **ids, turn=0, generated_tokens=tokens)
        add("tool_execution", replied, replied + tool, 1 + number, **ids, turn=0)
        of_request = {"turns": 1, "actual_response_tokens": tokens}
        add("async_rollout_request_complete", 0, replied + tool, 1 + number, **ids, **of_request)
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
    (finding,) = findings_of(run, over=False)
    assert (finding.cause, finding.step, finding.worker) == ("slow-call", 2, 1)
    assert finding.request_id == "2.1.0"
    assert finding.lost_sec == pytest.approx(7.6, abs=0.05)


def test_a_tool_call_that_merely_waits_for_a_blocked_loop_is_not_accused_beside_who_blocked_it(
    tmp_path: Path,
) -> None:
    for step in (1, 2, 3):
        for worker in (0, 1):
            tools = usual_tools(step, worker)
            write_requests(tmp_path, step, worker, [8.0, *tools[1:]] if (step, worker) == (2, 1) else tools)
    ended = "2026-01-05T08:33:28.850000+00:00"
    block = {"timestamp": ended, "event": "event_loop_block", "duration_sec": 7.85}
    block |= {"start_us": 1_767_602_001_000_000, "workid": 1, "step": 2, "extra": {"stack": ["a/b.py:3 c"]}}
    with (tmp_path / "step_2" / "worker_1.jsonl").open("a") as file:
        file.write(json.dumps(block) + "\n")
    run = open_run(tmp_path)
    (finding,) = findings_of(run, over=False)
    assert (finding.cause, finding.step, finding.worker) == ("blocked-loop", 2, 1)


def test_a_worker_whose_tools_are_all_slow_is_found_among_few_steps(tmp_path: Path) -> None:
    for step in (1, 2, 3):
        for worker in (0, 1):
            slower = 2.0 if (step, worker) == (2, 1) else 0.0
            write_requests(tmp_path, step, worker, [slower + sec for sec in usual_tools(step, worker)])
    run = open_run(tmp_path)
    (finding,) = findings_of(run, over=False)
    assert (finding.cause, finding.step, finding.worker) == ("tool", 2, 1)


def test_a_step_that_is_slow_for_all_its_workers_is_no_worker_s_fault(tmp_path: Path) -> None:
    for step in range(1, 7):
        for worker in range(4):
            token_sec = 0.05 if step == 4 else 0.01
            write_requests(tmp_path, step, worker, usual_tools(step, worker), token_sec)
    (finding,) = findings_of(open_run(tmp_path), over=False)
    assert (finding.cause, finding.scope, finding.step, finding.worker) == ("engine", "step", 4, None)
    assert finding.lost_sec == pytest.approx(4.8, rel=0.1)
