"""`demo --synthetic` writes a made-up run with any cause, shows progress, and names the cause."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from sglang_instrument.cli.main import main
from sglang_instrument.demo.synthetic import step_67
from sglang_instrument.testing.kinds import KINDS, sized

FEW = 12  # requests of a worker: the demo's 48 are played four times as long


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_INSTRUMENT_LOG_DIR", str(tmp_path / "logs"))
    monkeypatch.setenv("EXPERIMENT_NAME", "")


def test_a_cause_is_planted_and_named_and_piped_output_shows_each_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--synthetic", "--cause", "reward-all"]) == 0
    out, err = capsys.readouterr()
    assert "planted: step 6, all workers: Every reward takes " in out
    assert "verdict: step 6: reward time per request" in out
    assert f"logs: {tmp_path}/logs/reward-all" in out
    assert err.splitlines() == [f"step {step} is written, {step} of 10" for step in range(1, 11)]


def test_a_cause_alone_means_a_made_up_run_with_the_seed_that_was_asked_for(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--cause", "hang", "--seed", "5", "--experiment", "mine"]) == 0
    capsys.readouterr()
    assert main(["summary", str(tmp_path / "logs/mine"), "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["health"]["runs"] == ["synthetic-5"]
    assert summary["findings"][0]["cause"] in ("hang", "death")


def test_help_names_all_causes_and_an_unknown_one_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--help"]) == 0
    words = capsys.readouterr().out.replace(",", " ").split()
    assert set(KINDS) <= set(words)
    assert main(["demo", "--synthetic", "--cause", "reward"]) == 2
    assert "reward-all" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "ignored"),
    [
        (["--synthetic", "--steps", "3", "--no-install"], "--steps, --no-install"),
        (["--synthetic", "--seed", "0"], "--seed"),
        (["--cause", "hang", "--inject", "slow-tool"], "--inject"),
    ],
)
def test_a_made_up_run_refuses_options_that_it_would_ignore(
    arguments: list[str], ignored: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", *arguments]) == 2
    assert capsys.readouterr().err.endswith(f"without an engine: leave out {ignored}\n")


@pytest.mark.parametrize("name", KINDS)
def test_every_cause_is_told_in_words(name: str) -> None:
    """No field's name, and no repr: what a person reads names the step, and the worker if it is one."""
    kind = KINDS[name]
    cause = sized(kind, replace(kind.shape(0), requests=FEW), 0.5)
    words = cause.in_words
    assert not set("`=()'") & set(words.replace("(0-based)", ""))
    step, worker = cause.place
    assert step is None or f"step {step}" in words
    assert worker is None or f"worker {worker}" in words


def test_the_cause_of_step_67_is_told_in_words() -> None:
    assert step_67()[1].in_words == (
        "In step 67 exactly 109 requests of worker 0 stand still, in the engine call of turn 1 (0-based)"
    )
