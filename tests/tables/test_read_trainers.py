"""Tables of trainers that cannot be installed here find all of their regions in code of the trainers' shape.

The shapes are written for this test: names, order and anchors of the statements, nothing else. The pages of
the trainers say which version of the real source was read.
"""

from pathlib import Path

import pytest

from sglang_instrument.patching.places.source_archives import open_tree
from sglang_instrument.patching.rewriting.check import check
from sglang_instrument.patching.tables.about import read_abouts
from sglang_instrument.patching.tables.reading import load_table
from sglang_instrument.patching.tables.shipped import shipped_tables

SHAPES = Path(__file__).parent / "shapes"
TRAINERS = ("nemo_rl", "roll")
TABLES = [name for name in shipped_tables() if name.startswith(TRAINERS)]


@pytest.mark.parametrize("name", TABLES)
def test_every_region_is_found_and_every_field_has_its_local(name):
    [result] = check([load_table(name)], open_tree(SHAPES))
    assert result.sites is not None
    missing = [site for site in result.sites if site.expected and site.state != "found"]
    assert [(site.region.event, site.note) for site in missing] == []
    assert [(site.region.event, site.note) for site in result.sites if "no local" in site.note] == []


def test_slime_s_trackers_are_found_in_the_folder_to_which_they_moved():
    [result] = check([load_table("slime/tracker")], open_tree(SHAPES))
    assert result.sites is not None
    assert [(site.region.event, site.state, site.note) for site in result.sites] == [
        ("tracker_open", "found", ""),
        ("tracker_log", "found", ""),
    ]


@pytest.mark.parametrize("trainer", TRAINERS)
def test_a_trainer_that_was_only_read_says_so(trainer):
    [about] = [description for description in read_abouts() if description.trainer == trainer]
    assert about.oldest is None
    assert about.read is not None
    assert {text for table, text in about.tested.items() if table != "rollout"} == {"read only"}
    rollout = about.tested["rollout"]
    assert "of main" in rollout
    assert "(by hand" in rollout
    tables = {name.partition("/")[2] for name in TABLES if name.startswith(f"{trainer}/")}
    assert set(about.tested) == tables


def test_a_loop_of_an_agent_is_a_turn_with_its_call_of_the_engine_inside():
    [result] = check([load_table("roll/rollout")], open_tree(SHAPES))
    managers = {site.target for site in result.sites if "make_decision" in site.target.name}
    assert {target.name.partition(".")[0] for target in managers} == {
        *("TrajEnvManager", "VLTrajEnvManager", "AgentNativeStepEnvManager")
    }
    for target in managers:
        lines = {site.region.event: site.lines for site in result.sites if site.target == target}
        assert lines["turn_end"][0] <= lines["turn_pre_process"][0] < lines["turn_engine_call"][0]
        assert lines["turn_engine_call"][1] <= lines["turn_end"][1]


@pytest.mark.parametrize(
    "loop", ["grpo_train", "async_grpo_train", "grpo_train_sync", "ppo_train", "async_ppo_train"]
)
def test_the_phases_of_a_training_step_lie_in_it(loop):
    [result] = check([load_table("nemo_rl/trainer")], open_tree(SHAPES))
    lines = {site.region.event: site.lines for site in result.sites if site.target.name == loop}
    first, last = lines.pop("trainer_step")
    assert len(lines) >= 6
    assert all(first <= begin <= end <= last for begin, end in lines.values())
