"""The verdict finds what is planted, names where, and accuses nobody else."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest

from sglang_instrument.analysis import open_run
from sglang_instrument.analysis.verdict import Finding, find, verdict
from sglang_instrument.demo.synthetic import write
from sglang_instrument.testing import BlockedLoop, Hang, Plateau, SlowReward, Straggler, synthetic_run


def found_in(seed: int, **planted: Any) -> list[Finding]:
    with TemporaryDirectory() as folder:
        synthetic_run(folder, steps=6, workers=4, requests=16, seed=seed, **planted)
        run = open_run(folder)
        return find(run.digest, run.files)


@pytest.mark.parametrize(
    ("cause", "planted"),
    [
        ("straggler", {"straggler": Straggler(3, 2, 2.0)}),
        ("slow_reward", {"slow_reward": SlowReward(3, 2, 10.0)}),
        ("blocked_loop", {"blocked_loop": BlockedLoop(3, 2, 5.0, 5.0)}),
        ("plateau", {"plateau": Plateau(3, 2, 20.0, 80.0, 8)}),
        ("hang", {"hang": Hang(3, 2)}),
    ],
)
def test_a_planted_cause_is_found_and_nobody_else_accused(cause: str, planted: dict[str, Any]) -> None:
    for seed in range(3):
        found = found_in(seed, **planted)
        assert cause in [one.cause for one in found]
        assert {(one.step, one.worker) for one in found} == {(3, 2)}


def test_clean_runs_are_not_accused_of_anything() -> None:
    # A thousand of them are tried where the curves of docs/analysis.md are made; here is a sample.
    assert [found_in(seed) for seed in range(12)] == [[]] * 12


def test_a_skewed_clock_is_no_cause() -> None:
    assert found_in(1, clock_skew={2: 100.0}) == []


def test_the_verdict_on_step_67_is_the_story_of_the_readme(tmp_path: Path) -> None:
    write(tmp_path)
    run = open_run(tmp_path, cached=False)
    assert verdict(run.digest, run.files) == (
        "step 67: worker 0 arrived 160 s late; 109 of its 512 requests stood still from 19 s to 166 s; "
        "in turn 2, turn_engine_call"
    )


def test_a_clean_run_is_told_so_with_its_slowest_step(tmp_path: Path) -> None:
    run = open_run(synthetic_run(tmp_path, steps=3, workers=2, requests=6))
    assert verdict(run.digest, run.files).startswith("nothing out of the ordinary; the slowest step is ")
