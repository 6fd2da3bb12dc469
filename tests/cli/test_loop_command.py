"""The command `loop`: its tables, its words, its JSON, and what it says without a trainer in the log."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from sglang_instrument.cli.main import main
from sglang_instrument.testing.simulation.trainer import Trainer
from sglang_instrument.testing.synthetic import write_run
from sglang_instrument.testing.usual_run import usual_shape

TRAINER = Trainer(sec=30.0, jitter=0.05, weights_sec=2.0, recorded=True)


def made(folder: Path, trainer: Trainer, steps: int = 5) -> Path:
    return write_run(folder / "run", replace(usual_shape(2, steps=steps), trainer=trainer))


def printed(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> str:
    assert main([str(argument) for argument in arguments]) == code
    return capsys.readouterr().out


def test_a_synchronous_run_says_that_they_take_turns(capsys, tmp_path):
    words = printed(capsys, "loop", made(tmp_path, TRAINER))
    assert ": synchronous: one side after the other" in words
    assert "a rollout that runs ahead would save at most" in words
    assert "weight sync" in words
    sums = [line.split() for line in words.splitlines() if line.startswith("sum ")]
    assert [cells[2] for cells in sums] == [cells[4] for cells in sums] == ["100.0"]


def test_a_run_that_overlaps_says_who_waits(capsys, tmp_path):
    words = printed(capsys, "loop", made(tmp_path, replace(TRAINER, overlaps=True, sec=8.0)), "--step", "2-3")
    assert ": one step off: the rollout is one step ahead" in words
    assert "run ahead would save" not in words
    assert "the trainer waits for the rollout: " in words


def test_json_has_the_same_and_every_key_that_the_help_names(capsys, tmp_path):
    answer = json.loads(printed(capsys, "loop", made(tmp_path, TRAINER), "--step", "3", "--json"))
    assert answer["shape"] == "synchronous"
    assert answer["missing"] == []
    [step] = answer["steps"]
    for side in ("trainer", "rollout"):
        parts = [row["sec"] for row in answer["ledger"] if row["side"] == side]
        assert sum(parts) == pytest.approx(step["to_next_step_sec"])
    assert answer["mean"]["to_next_step_sec"] == pytest.approx(step["to_next_step_sec"])


def test_without_the_trainer_its_columns_are_unknown_and_the_reason_is_said(capsys, tmp_path):
    logs = made(tmp_path, replace(TRAINER, recorded=False), steps=2)
    words = printed(capsys, "loop", logs)
    assert ": the log does not show both sides" in words
    assert f"`sglang-instrument status {logs}`" in words
    first = next(line for line in words.splitlines() if line.startswith("1 "))
    assert first.split()[3:] == ["-"] * 7
    answer = json.loads(printed(capsys, "loop", logs, "--json"))
    assert answer["steps"][0]["train_sec"] is answer["steps"][0]["trainer_waits_sec"] is None
    assert answer["missing"][0].startswith("the log does not hold the trainer's phases")


def test_another_server_is_estimated_and_said_to_be_a_model(capsys, tmp_path):
    logs = made(tmp_path, replace(TRAINER, overlaps=True, sec=8.0))
    words = printed(capsys, "loop", logs, "--replicas", "+1")
    assert "5 servers in place of 4: a model, not a measurement" in words
    assert "sooner a step; the loop would save" in words
    assert "servers in the run: 4, one a worker, as their calls tell" in words
    less = printed(capsys, "loop", logs, "--replicas=-1", "--servers", "4")
    assert "later a step; the loop would lose" in less
    assert "servers in the run: 4, as --servers says" in less
    answer = json.loads(printed(capsys, "loop", logs, "--replicas", "1", "--json"))["replicas"]
    assert (answer["recorded"], answer["servers"], len(answer["steps"])) == (4, 5, 5)
    assert answer["mean"]["saved_sec"] <= answer["mean"]["rollout_saved_sec"]
    assert main(["loop", str(logs), "--servers", "2"]) == 2
    assert "goes with --replicas" in capsys.readouterr().err


def test_validations_have_no_loop_of_their_own(capsys, tmp_path):
    assert main(["loop", str(made(tmp_path, TRAINER, steps=2)), "--validate"]) == 2
    assert "a validation is a part of the step" in capsys.readouterr().err
