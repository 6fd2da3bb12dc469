"""A loop over one and over two real SGLang servers: its ledger, and what another server would save.

How near such predictions are is for `benchmarks/loop.py`; `tests/analysis/changes/test_replicas.py` has clear
cases.
"""

from pathlib import Path

import polars as pl
import pytest
from loops_served import hold, train
from sglang_server import Server

from sglang_instrument.analysis.ledger.loop_of_run import loop_of
from sglang_instrument.analysis.run.opening import Run

pytestmark = pytest.mark.engine

REQUESTS = 20
RUNNING = 8  # of the servers of `two_servers`
#: By the name of a run: its shape, its steps, and the seconds that its trainer trains in each.
LOOPS = {"one": ("synchronous", 2, 0.5), "two": ("synchronous", 2, 0.5), "off": ("one step off", 3, 1.5)}


@pytest.fixture(scope="module")
def runs(two_servers: list[Server], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    logs, folders = tmp_path_factory.mktemp("loop") / "logs", {}
    for name, (shape, steps, train_sec) in LOOPS.items():
        servers = two_servers[:1] if name == "one" else two_servers
        folders[name] = train(logs, servers, "off" if "off" in shape else "sync", steps, train_sec, REQUESTS)
    return folders


@pytest.mark.parametrize("name", LOOPS)
def test_the_shape_of_a_real_loop_is_told_and_both_sides_add_up(runs, name: str) -> None:
    shape, count, train_sec = LOOPS[name]
    loop = loop_of(Run.open(runs[name], cached=False))
    assert loop.shape() == shape
    steps = loop.steps()
    whole = loop.ledger().group_by("step", "side").agg(pl.col("sec").sum()).join(steps, on="step")
    assert whole.select(((pl.col("sec") - pl.col("to_next_step_sec")).abs() < 1e-6).all()).item()
    assert len(steps) == count
    assert (steps["train_sec"] >= 0.99 * train_sec).all()  # a sleep is never shorter, but for rounding
    assert (steps["weights_sec"] >= 0.099).all()


def test_another_server_is_predicted_to_save_time_and_one_less_to_cost_it(runs) -> None:
    more, less = hold(runs["one"], runs["two"], RUNNING)
    assert more.predicted_sec < more.was_sec
    assert less.predicted_sec > less.was_sec
