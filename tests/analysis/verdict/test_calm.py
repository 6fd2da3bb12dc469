"""The verdict is calm only where nothing was out of the ordinary, and says what its findings leave open."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from made_steps import EPOCH_US
from made_workers import Step, Worker, write_worker, written

from sglang_instrument.analysis import open_run, step_table, step_windows, worker_ledger
from sglang_instrument.analysis.verdict.verdict import Verdict, judge
from sglang_instrument.cli.main import main
from sglang_instrument.report.html.overview import Overview
from sglang_instrument.report.html.story import story
from sglang_instrument.testing.synthetic import synthetic_run


def steps_of(
    lengths: list[int], event: str = "engine_generate", workers: int = 1, gap: int = 5
) -> list[Step]:
    return [
        Step({rank: Worker(0, [[(event, length)]]) for rank in range(workers)}, gap, 0, False)
        for length in lengths
    ]


def judged(folder: Path, steps: list[Step]) -> Verdict:
    written(folder, steps, {})
    return judge(open_run(folder), over=False)


def test_equal_steps_are_calm(tmp_path: Path) -> None:
    verdict = judged(tmp_path, steps_of([20] * 5, workers=2))
    assert verdict.calm
    assert verdict.sentence.startswith("nothing out of the ordinary; ")


def test_a_slow_step_is_not_calm_without_a_finding(tmp_path: Path) -> None:
    verdict = judged(tmp_path, steps_of([20, 60], workers=2))
    assert not verdict.calm
    assert not verdict.findings
    assert verdict.sentence.startswith(
        "step 1, the slowest, took 6 s, 1.5 times the median step: 4 s more in"
    )
    assert verdict.sentence.endswith(" (2 steps of 2 workers: too little to compare)")
    assert re.fullmatch(r"its parts: `sglang-instrument summary /\S+ --step 1`", verdict.advice)


def test_a_long_gap_among_few_steps_is_not_calm(tmp_path: Path) -> None:
    worker = Worker(0, [[("engine_generate", 60)]])
    verdict = judged(tmp_path, [Step({0: worker}, gap, 0, False) for gap in (600, 10, 10)])
    assert not verdict.calm
    assert "step 0, the slowest, took" in verdict.sentence
    assert "until the next began" in verdict.sentence
    assert "more between steps" in verdict.sentence


def test_no_gap_is_the_reason_of_a_step_whose_gap_was_as_usual(tmp_path: Path) -> None:
    verdict = judged(tmp_path, steps_of([20, 60]))
    assert "step 1, the slowest, took" in verdict.sentence
    assert "between steps" not in verdict.sentence
    assert "until the next" not in verdict.sentence


def write_turns(folder: Path, step: int, worker: int, turns: int, padded_sec: float) -> None:
    """Write a step with a request of several turns, and padding after it."""
    lines: list[dict[str, Any]] = []

    def add(event: str, start: float, end: float, task: int = 0, **extra: Any) -> None:
        times = {"duration_sec": end - start, "start_us": EPOCH_US + int((step * 100 + start) * 1e6)}
        ids = {"task": task, "extra": extra} | ({"spawned_by": 0} if task else {})
        lines.append({"timestamp": "2026-01-05T08:00:00+00:00", "event": event, **times, **ids})

    for turn in range(turns):
        ids = {"request_id": f"{step}.{worker}", "turn": turn}
        add("turn_engine_call", turn, turn + 0.5, 1, **ids)
        add("tool_execution", turn + 0.5, turn + 1, 1, **ids)
    add("async_rollout_request_complete", 0, turns, 1, request_id=f"{step}.{worker}", turns=turns)
    add("padding_duration", turns, turns + padded_sec)
    add("total_step_duration", 0, turns + padded_sec)
    path = folder / f"step_{step}" / f"worker_{worker}.jsonl"
    path.parent.mkdir(parents=True)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))


def test_a_small_finding_does_not_hide_why_the_slowest_step_was_slow(tmp_path: Path) -> None:
    for step in range(1, 9):
        write_turns(tmp_path, step, 0, turns=12 if step == 6 else 4, padded_sec=1.2 if step == 2 else 0.2)
    verdict = judge(open_run(tmp_path), over=False)
    assert [(finding.cause, finding.step) for finding in verdict.findings] == [("post-processing", 2)]
    assert verdict.sentence.startswith(verdict.findings[0].sentence)
    assert ". Step 6, the slowest, took 12 s, 2.9 times the median step: " in verdict.sentence
    assert "4 s more in engine" in verdict.sentence
    assert "4 s in more tool calls" in verdict.sentence
    assert verdict.advice == verdict.findings[0].advice


def test_a_slowest_step_that_a_finding_explains_is_told_once(tmp_path: Path) -> None:
    for step in range(1, 9):
        write_turns(tmp_path, step, 0, turns=4, padded_sec=4.2 if step == 2 else 0.2)
    verdict = judge(open_run(tmp_path), over=False)
    assert [(finding.cause, finding.step) for finding in verdict.findings] == [("post-processing", 2)]
    assert "the slowest" not in verdict.sentence


def test_of_one_worker_it_is_said_that_there_are_no_peers(tmp_path: Path) -> None:
    assert judged(tmp_path, steps_of([20] * 6)).sentence.endswith("(one worker: no peers to compare with)")


@pytest.mark.parametrize(("lengths", "clean"), [([20] * 5, True), ([20, 60], False)])
def test_the_badge_of_the_report_is_green_only_if_the_verdict_is_calm(
    lengths: list[int], clean: bool, tmp_path: Path
) -> None:
    written(tmp_path, steps_of(lengths, workers=2), {})
    run = open_run(tmp_path)
    overview = replace(Overview.of(run), verdict=judge(run, over=False))
    assert story(run, overview)["clean"] is clean


def launched(folder: Path, launches: dict[int, str]) -> None:
    """Add to the files of steps the launch that wrote them."""
    for step, run_id in launches.items():
        for path in (folder / f"step_{step}").glob("*.jsonl"):
            header = {"timestamp": "2026-01-05T08:00:00+00:00", "event": "log_opened"}
            header |= {"extra": {"log_version": 1, "run_id": run_id, "step_bound": True}}
            path.write_text(json.dumps(header) + "\n" + path.read_text())


def test_a_step_before_a_new_launch_does_not_last_until_the_next_step(tmp_path: Path) -> None:
    steps = [step._replace(gap=gap) for step, gap in zip(steps_of([20] * 4), (5, 90_000, 5, 5), strict=True)]
    written(tmp_path, steps, {})
    launched(tmp_path, {0: "monday", 1: "monday", 2: "wednesday", 3: "wednesday"})
    run = open_run(tmp_path)
    windows = step_windows(run.digest)
    assert windows["is_last"].to_list() == [False, True, False, True]
    second = windows.row(1, named=True)
    assert second["to_next_step_sec"] == pytest.approx((second["done_us"] - second["begin_us"]) / 1e6)
    assert step_table(run.digest)["interval_sec"].is_null().to_list() == [False, True, False, True]
    assert worker_ledger(run.digest).filter(step=1, part="between steps").is_empty()
    assert judge(run, over=False).calm


def test_a_step_of_no_length_yet_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = synthetic_run(tmp_path, steps=2, workers=1, requests=2)
    line = {"timestamp": "2026-01-05T09:00:00+00:00", "event": "padding_duration", "duration_sec": 0.0}
    line |= {"start_us": 1_767_700_000_000_000, "task": 0}
    (folder / "step_3").mkdir()
    (folder / "step_3" / "worker_0.jsonl").write_text(json.dumps(line) + "\n")
    for arguments in ([], ["--step", "3"]):
        assert main(["summary", str(folder), *arguments]) == 0
    assert "\n3 " in capsys.readouterr().out.replace("│", "").replace(" 3 ", "\n3 ")


def test_the_slowest_of_two_steps_is_compared_with_the_median(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path, steps_of([10, 20]), {})
    assert main(["summary", str(tmp_path)]) == 0
    assert "1.3 x the median" in capsys.readouterr().out


def test_a_validation_that_only_the_trainer_wrote_is_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path, steps_of([20] * 3), {})
    write_worker(tmp_path / "validate_2" / "trainer_0.jsonl", [("trainer_validate", 100, 110)], 0)
    table = step_table(open_run(tmp_path).digest)
    assert table.select("step", "validate").rows() == [(0, False), (1, False), (2, False), (2, True)]
    for arguments in ([], ["--step", "2"]):
        assert main(["summary", str(tmp_path), "--validate", *arguments]) == 0
    assert "1 validation step" in " ".join(capsys.readouterr().out.split())
