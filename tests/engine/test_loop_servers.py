"""A loop over real SGLang servers, one and two: its ledger; what another server saves, predicted and real.

`benchmarks/loop.py` measures how near predictions are; here the machine may be busy, and the bound is wide.
"""

from pathlib import Path

import polars as pl
import pytest
from loops_served import Held, hold, train, two_servers

from sglang_instrument.analysis.ledger.loop_of_run import loop_of
from sglang_instrument.analysis.run.opening import open_run

pytestmark = pytest.mark.engine

STEPS, TRAIN_SEC, REQUESTS = 3, 1.0, 20
WIDE = 0.35


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("loop")
    with two_servers(folder) as servers:
        return {
            "one": train(folder / "logs", servers[:1], "sync", STEPS, TRAIN_SEC, REQUESTS),
            "two": train(folder / "logs", servers, "sync", STEPS, TRAIN_SEC, REQUESTS),
            "off": train(folder / "logs", servers, "off", STEPS + 1, 3.0, REQUESTS),
        }


@pytest.mark.parametrize(
    ("name", "shape"), [("one", "synchronous"), ("two", "synchronous"), ("off", "one step off")]
)
def test_the_shape_of_a_real_loop_is_told_and_both_sides_add_up(runs, name: str, shape: str) -> None:
    loop = loop_of(open_run(runs[name], cached=False))
    assert loop.shape() == shape
    steps = loop.steps()
    whole = loop.ledger().group_by("step", "side").agg(pl.col("sec").sum()).join(steps, on="step")
    assert whole.select(((pl.col("sec") - pl.col("wall_sec")).abs() < 1e-6).all()).item()
    trains = 3.0 if name == "off" else TRAIN_SEC
    assert len(steps) == (STEPS + 1 if name == "off" else STEPS)
    assert (steps["train_sec"] >= 0.99 * trains).all()
    # A busy machine may wake the trainer late in one step.
    assert steps["train_sec"].median() == pytest.approx(trains, rel=0.25)
    assert (steps["weights_sec"] >= 0.1).all()


def test_another_server_saves_about_what_was_predicted_and_one_less_costs_it(runs) -> None:
    more, less = hold(runs["one"], runs["two"])
    assert (more.recorded, more.servers, less.recorded, less.servers) == (1, 2, 2, 1)
    assert more.measured_sec < more.was_sec  # the second server did help
    for one in (more, less):
        assert one.ratio == pytest.approx(1, abs=WIDE), words(one)


def words(one: Held) -> str:
    return f"{one.servers} servers: predicted {one.predicted_sec:.2f} s, measured {one.measured_sec:.2f} s"
