"""`advise` names the limits that calls meet, and none where times and lengths scatter as they do."""

import json
from dataclasses import replace
from random import Random

import polars as pl
import pytest
from set_worlds import play_set, well_set_world, wrong_world

from sglang_instrument.analysis import limit_table, open_run
from sglang_instrument.analysis.advice.evidence.cliffs import count_cliff
from sglang_instrument.analysis.advice.limits import _last_count
from sglang_instrument.cli.main import main
from sglang_instrument.testing.world.play import write_world


def limits_of(folder, world):
    return limit_table(open_run(write_world(folder, play_set(world)), cached=False))


def test_a_time_out_is_a_limit_with_how_many_meet_it(tmp_path):
    world = wrong_world("time-out of a tool", 0)
    [limit] = limits_of(tmp_path / "world", world).to_dicts()
    assert (limit["of"], limit["kind"]) == ("calls of tool search", "time")
    assert limit["value"] == pytest.approx(world.timeout_sec, rel=0.01)
    assert limit["above"] == 0
    assert limit["sentence"].startswith(
        f"{limit['at_limit']:,} of {limit['of_all']:,} calls of tool search ended at "
    )
    assert limit["sentence"].endswith(": a limit, not slowness")


@pytest.mark.parametrize(
    ("kind", "cap", "limit_of"), [("response cap", 700, "tokens"), ("turn cap", 3, "turns")]
)
def test_a_cap_on_responses_is_a_limit(tmp_path, kind, cap, limit_of):
    world = wrong_world(kind, 6)
    assert limit_of not in limits_of(tmp_path / "free", world)["kind"]
    name = "most_tokens" if limit_of == "tokens" else "most_turns"
    capped = limits_of(tmp_path / "capped", replace(world, **{name: cap}))
    [limit] = capped.filter(kind=limit_of).to_dicts()
    assert limit["value"] == cap
    assert 5 <= limit["at_limit"] < limit["of_all"]


def test_running_requests_that_stand_at_one_number_while_others_wait_are_a_limit(tmp_path):
    world = wrong_world("running limit", 0)
    limits = limits_of(tmp_path / "world", world).filter(kind="concurrency")
    assert set(limits["value"]) == {float(world.shape.server.max_running)}
    assert len(limits) == world.shape.servers


def test_calls_that_wait_for_a_place_in_a_pool_meet_a_limit(tmp_path):
    world = wrong_world("pool of tools or rewards", 2)
    [limit] = limits_of(tmp_path / "world", world).filter(pl_is_pool()).to_dicts()
    assert "run; the others wait" in limit["sentence"]


def pl_is_pool():
    return (pl.col("kind") == "concurrency") & pl.col("of").str.contains("calls")


@pytest.mark.parametrize("seed", range(3))
def test_a_well_set_world_meets_no_limit(tmp_path, seed):
    limits = limits_of(tmp_path / "world", well_set_world(seed))
    assert limits["sentence"].to_list() == []


def test_retries_without_a_limit_become_rarer_and_those_with_one_do_not():
    random = Random(0)

    def retries(most):
        count = 1
        while count < most and random.random() < 0.6:
            count += 1
        return count

    assert [_last_count([retries(1_000) for _ in range(400)]) for _ in range(50)] == [None] * 50
    assert _last_count([retries(4) for _ in range(800)]) == 4


def test_many_counts_at_the_largest_are_a_cliff_and_a_tail_is_none():
    random = Random(0)
    tokens = [round(random.lognormvariate(6, 0.6)) for _ in range(2_000)]
    assert count_cliff(tokens) is None
    assert count_cliff([min(count, 1_024) for count in tokens]) == 1_024


def test_advise_prints_limits(tmp_path, capsys):
    folder = write_world(tmp_path / "world", play_set(wrong_world("running limit", 0)))
    assert main(["advise", str(folder), "--no-promise", "--json"]) == 0
    [first, *_] = json.loads(capsys.readouterr().out)["limits"]
    assert main(["advise", str(folder), "--no-promise"]) == 0
    assert f"limit: {first['sentence']}" in " ".join(capsys.readouterr().out.split())
