"""`compare` says which differences of settings and lengths can carry the difference of the steps."""

import json
from dataclasses import replace

import pytest
from set_worlds import changed, play_set, wrong_world

from sglang_instrument.analysis import change_table, compare_runs, open_run, reason_table
from sglang_instrument.analysis.changes.why.reasons import reason_words
from sglang_instrument.analysis.changes.why.works_on import EVERYTHING, parts_of_setting
from sglang_instrument.analysis.settings.differences import Difference
from sglang_instrument.cli.main import main
from sglang_instrument.testing.world.play import write_world


def pair(tmp_path, before, after):
    return [
        open_run(write_world(tmp_path / name, play_set(world)), cached=False)
        for name, world in (("a", before), ("b", after))
    ]


def why(runs):
    compared = compare_runs(*runs)
    return reason_table(*runs, compared.steps, compared.other_steps)


def test_the_setting_that_was_changed_carries_the_difference_and_equal_lengths_none(tmp_path):
    world = wrong_world("running limit", 1)
    after = changed(world, {"lever": "running limit", "proposed": 4 * world.shape.server.max_running})
    table = why(pair(tmp_path, world, after))
    first = table.row(0, named=True)
    assert (first["what"], first["a"]) == ("max_running_requests", str(world.shape.server.max_running))
    assert first["share"] > 0.9
    assert first["sec"] < 0
    assert table.filter(kind="lengths")["share"].to_list() == pytest.approx([0.0], abs=0.02)


def test_retractions_are_said_where_the_memory_of_the_cache_changed(tmp_path):
    world = wrong_world("key-value cache", 1)
    shape = world.shape
    more = replace(shape.server, kv_tokens=8 * shape.server.kv_tokens)
    first = why(pair(tmp_path, world, replace(world, shape=replace(shape, server=more)))).row(0, named=True)
    assert first["what"] == "max_total_tokens"
    assert first["share"] > 0.9


def test_a_cap_shows_in_the_lengths_of_the_last_replies(tmp_path):
    world = wrong_world("response cap", 4)
    first = why(pair(tmp_path, world, replace(world, most_tokens=600))).row(0, named=True)
    assert first["kind"] == "lengths"
    assert first["share"] > 0.8


def test_what_no_record_explains_is_said_so(tmp_path, capsys):
    world = wrong_world("pool of tools or rewards", 2)
    faster = replace(world, shape=replace(world.shape, tool_places={"search": 80}))
    runs = pair(tmp_path, world, faster)
    first, *_ = reason_words(why(runs))
    assert first == "nothing that both runs recorded of settings, versions, hosts and lengths can carry it"
    compared = compare_runs(*runs)
    changes = change_table(*runs, compared.steps, compared.other_steps)
    assert changes["part"][0] == "tool"
    assert changes["a_sec"].sum() == pytest.approx(sum_of_steps(runs[0], compared.steps), rel=1e-6)
    assert main(["compare", *(str(run.folder) for run in runs)]) == 0
    printed = " ".join(capsys.readouterr().out.split())
    assert f"why: {first}" in printed
    assert main(["compare", *(str(run.folder) for run in runs), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["changes"][0]["part"] == "tool"


def sum_of_steps(run, steps):
    """Return the mean seconds of these steps until the next begins, as `summary` has them."""
    table = run.summary()
    return table.filter(table["step"].is_in(steps))["to_next_step_sec"].mean()


@pytest.mark.parametrize(
    ("source", "name", "works_on"),
    [
        ("server_args", "log_level", ()),
        ("server_args", "mem_fraction_static", ("queue", "prefill", "decode", "engine")),
        ("config", "actor_rollout_ref.rollout.response_length", "lengths of the replies"),
        ("config", "actor_rollout_ref.actor.ppo_micro_batch_size_per_gpu", "between steps"),
        ("config", "trainer.a_name_of_nobody", None),
        ("packages", "sglang", ("queue", "prefill", "decode", "engine")),
        ("packages", "torch", (EVERYTHING,)),
        ("machine", "gpus.0", (EVERYTHING,)),
    ],
)
def test_a_setting_works_on_what_its_name_says(source, name, works_on):
    parts = parts_of_setting(Difference(["worker"], source, name, [1], [2]))
    assert parts == works_on or (isinstance(works_on, str) and works_on in parts)
