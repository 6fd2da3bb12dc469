"""`advise` proposes the setting that is wrong in a world; it is silent where none is and where a fault is."""

from dataclasses import replace
from pathlib import Path

import pytest
from set_worlds import changed, play_set, step_sec, well_set_world, wrong_world

from sglang_instrument.analysis import advise, open_run
from sglang_instrument.analysis.advice.evidence.cliffs import cliffs_in
from sglang_instrument.analysis.advice.intervals import saving_of
from sglang_instrument.testing import Hang, synthetic_run
from sglang_instrument.testing.world.play import write_world


def advice_of(folder: Path, world):
    return advise(open_run(write_world(folder, play_set(world)), cached=False))


def saved_in_truth(world, row):
    """Return what a step saves when the same requests are played with the proposed setting."""
    return step_sec(play_set(world)) - step_sec(play_set(changed(world, row)))


@pytest.mark.parametrize(
    ("kind", "setting"),
    [
        ("running limit", "max_running_requests"),
        ("pool of tools or rewards", "how many calls of rewards run at once"),
        ("time-out of a tool", "time-out of tool search"),
        ("constant cost out of the loop", "where preprocessing of the batch runs"),
        ("servers", "servers of the rollout"),
    ],
)
def test_the_setting_that_is_wrong_is_proposed_and_its_saving_is_real(tmp_path, kind, setting):
    world = wrong_world(kind, 0)
    rows = advice_of(tmp_path / "world", world).rows("LOGS")
    row = next(row for row in rows if row["lever"] == kind)
    assert row["setting"] == setting
    assert row["low"] < row["saves_sec"] < row["high"]
    assert row["saves_sec"] == pytest.approx(saved_in_truth(world, row), rel=0.25)
    assert "LOGS" in row["command"]


def test_a_well_set_world_has_nothing_to_gain(tmp_path):
    advice = advice_of(tmp_path / "world", well_set_world(0))
    assert advice.levers == []
    assert advice.sentence.startswith("nothing to gain from settings: the rollout is at work in ")


def test_no_lever_is_told_while_a_fault_dominates(tmp_path):
    run = open_run(synthetic_run(tmp_path / "exp", steps=4, workers=2, causes=[Hang(4, 1)]), cached=False)
    advice = advise(run)
    assert advice.levers == []
    assert advice.mend_first is not None
    assert advice.mend_first.cause == "hang"
    assert advice.sentence == f"mend this first: {advice.mend_first.sentence}"


def test_the_best_two_are_simulated_together_and_save_no_more_than_their_sum(tmp_path):
    world = wrong_world("servers", 0)
    advice = advice_of(tmp_path / "world", replace(world, before_sec=5.0))
    first, second = (advised.saving for advised in advice.levers[:2])
    assert advice.together is not None
    assert max(first.sec, second.sec) <= advice.together.sec <= first.sec + second.sec + 1e-6


def test_an_interval_needs_two_steps_and_widens_with_what_steps_differ():
    assert saving_of([5.0]) is None
    narrow, wide = saving_of([5.0, 5.1, 4.9, 5.0]), saving_of([2.0, 8.0, 4.0, 6.0])
    assert narrow.sec == pytest.approx(wide.sec) == pytest.approx(5.0)
    assert narrow.low > wide.low


def test_calls_that_end_at_one_time_are_a_cliff_and_others_are_none():
    usual = [0.5 + 0.03 * number for number in range(400)]
    assert cliffs_in(usual) == []
    [cliff] = cliffs_in([*usual, *(1_800.0 + number / 10 for number in range(-15, 16))])
    assert (cliff.calls, cliff.above) == (31, 0)
    assert cliff.words("s") == "1,800 +- 1.5 s"
