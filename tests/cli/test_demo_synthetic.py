"""`demo --synthetic` writes a made-up run with any cause, shows progress, and names the cause."""

import json
from pathlib import Path

import pytest

from sglang_instrument.cli.main import main
from sglang_instrument.testing.kinds import KINDS


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SGLANG_INSTRUMENT_LOG_DIR", str(tmp_path / "logs"))
    monkeypatch.setenv("EXPERIMENT_NAME", "")


def test_a_cause_is_planted_and_named_and_piped_output_shows_each_step(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--synthetic", "--cause", "reward-all"]) == 0
    out, err = capsys.readouterr()
    assert "planted: SlowReward(step=6, worker=None, seconds=" in out
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
