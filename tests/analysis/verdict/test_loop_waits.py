"""Who waits for the other in most steps is found; a loop that takes turns is not accused."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest
from made_loops import MadeLoop, Request, TrainerStep, write_loop

from sglang_instrument.analysis import findings_of, open_run
from sglang_instrument.analysis.verdict.evidence.finding import Finding
from sglang_instrument.testing.simulation.trainer import Trainer
from sglang_instrument.testing.synthetic import write_run
from sglang_instrument.testing.usual_run import usual_shape

CAUSES = ("trainer-waits", "rollout-waits", "exposed-reward")


def waits_in(folder: Path) -> list[Finding]:
    findings = findings_of(open_run(folder, cached=False), over=True)
    return [finding for finding in findings if finding.cause in CAUSES]


def run_of(folder: Path, seed: int, **trainer: object) -> Path:
    usual = {"jitter": 0.05, "recorded": True, "weights_sec": 1.0, **trainer}
    return write_run(folder, replace(usual_shape(seed, steps=6), trainer=Trainer(**usual)))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("sec", "cause"), [(8.0, "trainer-waits"), (90.0, "rollout-waits"), (30.0, None)], ids=str
)
def test_the_side_that_waits_is_named_with_its_time(sec: float, cause: str | None, tmp_path: Path) -> None:
    findings = waits_in(run_of(tmp_path, 4, sec=sec, overlaps=True))
    assert [finding.cause for finding in findings] == ([] if cause is None else [cause])
    for finding in findings:
        assert finding.scope == "run"
        assert finding.step is None
        assert finding.lost_sec > 5.0
        assert finding.evidence["share"] >= 0.2
        assert "`sglang-instrument loop /" in finding.advice


@pytest.mark.parametrize("sec", [8.0, 90.0])
def test_nobody_is_accused_where_they_take_turns(sec: float, tmp_path: Path) -> None:
    assert waits_in(run_of(tmp_path, 5, sec=sec)) == []


def test_nobody_is_accused_without_the_trainer_in_the_log(tmp_path: Path) -> None:
    assert waits_in(run_of(tmp_path, 5, sec=8.0, overlaps=True, recorded=False)) == []


def rewarded(ticks: int) -> tuple[Sequence[TrainerStep], list[Request]]:
    events = [("trainer_generate", 40), ("trainer_reward", ticks), ("trainer_update_actor", 40)]
    length = 80 + ticks
    requests = [Request(step + 1, length * step, length * step + 40) for step in range(4)]
    return [TrainerStep([event for event in events if event[1]], 0)] * 4, requests


@pytest.mark.parametrize(("ticks", "causes"), [(40, ["exposed-reward"]), (10, [])])
def test_rewards_that_all_wait_for_are_found(ticks: int, causes: list[str], tmp_path: Path) -> None:
    steps, requests = rewarded(ticks)
    findings = waits_in(write_loop(tmp_path, MadeLoop(list(steps), requests)))
    assert [finding.cause for finding in findings] == causes
    for finding in findings:
        assert finding.evidence["share"] == pytest.approx(1 / 3)
