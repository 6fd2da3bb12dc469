"""A step is out of the ordinary beside all others, not beside those that happen to lie close together."""

import polars as pl

from sglang_instrument.analysis.verdict.evidence.effects import slow_steps
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
