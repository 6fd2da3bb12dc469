"""A prediction is held against a world of servers and pools that is played again under the rule."""

from pathlib import Path

import pytest
from changed_worlds import ChangedWorld, changed_world, rules_of

from sglang_instrument.analysis import Model, Run, open_run, step_table, waits_of
from sglang_instrument.cli.main import main
from sglang_instrument.testing.world.play import write_world

#: Of each kind, a world, a rule, and how far the mean of the steps may be off.
ASKED = {
    "even": (0, "tool x 3", 0.02),
    "pool of a tool": (0, "tool x 3", 0.03),
    "pool of rewards": (0, "half of the tokens a turn", 0.05),
    "heavy prefill": (1, "half of the tokens a turn", 0.03),
    "uneven servers": (2, "engine x 0.5", 0.03),
}


def run_of(world: ChangedWorld, folder: Path) -> Run:
    return open_run(write_world(folder, world.play()), cached=False)


@pytest.mark.parametrize("kind", ASKED)
def test_a_prediction_is_what_the_world_takes_under_the_rule(tmp_path: Path, kind: str) -> None:
    seed, name, off = ASKED[kind]
    world = changed_world(kind, seed)
    run = run_of(world, tmp_path / "recorded")
    model = Model(run.digest, waits=waits_of(run))
    rules = rules_of(name, run.digest.turns["response_tokens"].drop_nulls().to_list())
    real = run_of(world.under(rules), tmp_path / "real")
    both = model.predict(rules).join(step_table(real.digest), on=["step", "validate"])
    assert both["predicted_sec"].mean() == pytest.approx(both["busy_sec"].mean(), rel=off)
    assert model.replay_error is not None
    assert model.replay_error < 0.05


def test_a_pool_is_what_the_world_has(tmp_path: Path) -> None:
    world = changed_world("pool of a tool", 0)
    run = run_of(world, tmp_path / "recorded")
    (pool,) = waits_of(run).pools
    assert pool["name"] == "tool_call search"
    assert abs(pool["places"] - world.shape.tool_places["search"]) <= 1
    assert pool["waited_share"] > 0.1
    assert waits_of(run_of(changed_world("even", 0), tmp_path / "even")).pools == []


def test_it_warns_where_the_speeds_alone_miss_the_recorded_steps(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    # Whoever draws the slow one of equally busy servers last decides when the step ends.
    run_of(changed_world("uneven servers", 1), tmp_path / "recorded")
    assert main(["whatif", str(tmp_path / "recorded"), "--scale", "tool=3"]) == 0
    assert "Predictions are rough" in capsys.readouterr().out
    run_of(changed_world("even", 0), tmp_path / "even")
    assert main(["whatif", str(tmp_path / "even"), "--scale", "tool=3"]) == 0
    assert "rough" not in capsys.readouterr().out
