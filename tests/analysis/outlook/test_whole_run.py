"""`forecast` says when a training ends, by the steps so far and by how many there are."""

import json
from dataclasses import replace

import pytest
from set_worlds import play_set, step_sec, wrong_world

from sglang_instrument.analysis import forecast_run, open_run
from sglang_instrument.cli.main import main
from sglang_instrument.testing import SlowTools, synthetic_run
from sglang_instrument.testing.world.play import write_world


@pytest.fixture(scope="module")
def world():
    wrong = wrong_world("response cap", 4)
    return replace(wrong, shape=replace(wrong.shape, steps=12))


@pytest.fixture(scope="module")
def folder(world, tmp_path_factory):
    return write_world(tmp_path_factory.mktemp("whole") / "world", play_set(world))


def test_the_end_is_as_many_steps_away_as_are_left_at_the_time_that_steps_take(folder, world):
    forecasted = forecast_run(open_run(folder, cached=False), steps=100, gpus=8)
    assert (forecasted.last_step, forecasted.steps_left) == (12, 88)
    usual = 88 * step_sec(play_set(world))
    assert forecasted.low_sec < usual < forecasted.high_sec
    assert forecasted.left_sec == pytest.approx(usual, rel=0.3)
    assert forecasted.gpu_hours() == pytest.approx(8 * forecasted.left_sec / 3600)
    assert [row["step"] for row in forecasted.milestones][-1] == 100
    assert forecasted.milestones[-1]["in_sec"] == forecasted.left_sec


def test_a_cap_from_now_on_ends_the_training_sooner_the_lower_it_is(folder):
    caps = forecast_run(open_run(folder, cached=False), steps=100).caps
    assert len(caps) > 2
    saved = [row["saves_sec"] for row in sorted(caps, key=lambda row: row["cap"])]
    assert saved == sorted(saved, reverse=True)
    assert all(0 < row["cut_share"] <= 0.2 for row in caps)


def test_the_command_says_what_is_missing_and_refuses_what_cannot_be_forecast(folder, tmp_path, capsys):
    assert main(["forecast", str(folder), "--steps", "100", "--json"]) == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["gpus"] is answer["gpu_hours"] is None
    assert "--gpus N" in answer["missing"][0]
    assert answer["low_sec"] < answer["left_sec"] < answer["high_sec"]
    assert main(["forecast", str(folder), "--steps", "100", "--gpus", "8"]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert answer["sentence"].partition(" at ")[0].split(" h (")[0] in printed
    assert "GPU hours" in printed
    assert main(["forecast", str(folder), "--steps", "12"]) == 2
    assert "nothing is left to forecast" in capsys.readouterr().err
    assert main(["forecast", str(folder)]) == 2
    assert "use --steps N" in capsys.readouterr().err
    few = synthetic_run(tmp_path / "few", steps=3, workers=1)
    assert main(["forecast", str(few), "--steps", "9"]) == 2
    assert "a forecast needs 5" in capsys.readouterr().err


def test_steps_that_say_nothing_of_those_to_come_are_refused_in_words(tmp_path, capsys):
    causes = [SlowTools(step, 0, seconds=2000.0) for step in (4, 5, 6)]
    run = synthetic_run(tmp_path / "jumps", steps=6, workers=1, causes=causes)
    assert main(["forecast", str(run), "--steps", "500"]) == 2
    refused = capsys.readouterr().err
    assert "6 complete steps differ too much to tell when 494 more end" in refused
    assert "Warning" not in refused
