"""A step is out of the ordinary beside all others, not beside those that happen to lie close together."""

import polars as pl

from sglang_instrument.analysis.verdict.evidence.effects import slow_steps, slow_workers
from sglang_instrument.analysis.verdict.evidence.work import WORK_LIMITS


def slow(*values: float) -> list[int]:
    """Return which of these steps are slow."""
    steps = {"step": range(len(values)), "validate": False, "shared": values}
    return slow_steps(pl.DataFrame(steps), WORK_LIMITS)["step"].to_list()


def test_four_steps_that_lie_close_together_make_no_other_slow() -> None:
    assert slow(-0.337, -0.334, -0.326, -0.319, -0.165, -0.251, -0.157) == []


def test_a_step_that_lies_far_above_all_others_is_slow() -> None:
    assert slow(0.0, 0.03, -0.02, 0.01, 0.5, -0.03, 0.02) == [4]


def test_two_slow_steps_do_not_hide_each_other() -> None:
    assert slow(0.0, 0.03, 0.52, 0.01, 0.5, -0.03, 0.02) == [2, 4]


def test_of_four_steps_that_vary_little_one_may_be_slow() -> None:
    assert slow(0.0, 0.01, 0.0, 0.4) == [3]


def test_a_usual_worker_beside_one_that_is_fast_for_once_is_not_slow() -> None:
    first = [0.0, 0.0, 0.03, 0.05, -0.01, -0.01, 0.03]
    second = [0.01, 0.02, -0.5, 0.0, -0.01, -0.01, -0.02]
    rows = [(step, worker, row[step]) for step in range(7) for worker, row in enumerate((first, second))]
    groups = pl.DataFrame(rows, schema=["step", "worker", "value"], orient="row")
    groups = groups.with_columns(validate=pl.lit(value=False))
    assert slow_workers(groups, WORK_LIMITS).is_empty()
    slower = pl.when((pl.col("step") == 4) & (pl.col("worker") == 1)).then(0.5).otherwise("value")
    slow_there = slow_workers(groups.with_columns(value=slower), WORK_LIMITS)
    assert slow_there.select("step", "worker").rows() == [(4, 1)]
