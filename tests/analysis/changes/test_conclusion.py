"""A comparison is told in words: its outcome, the ratio with its interval, and what the steps cannot tell."""

import math
from random import Random

import pytest

from sglang_instrument.analysis.changes.compare import Comparison, comparison_of
from sglang_instrument.analysis.changes.conclusion import conclusion_of

STEPS = [*range(1, 21)]


def compared(steps: int = 20, **factors: float) -> Comparison:
    """Compare runs whose metrics scatter by 3 %, and by 60 % where the factor is 0; B is `factor` times A."""
    random = Random(3)
    values: list[dict[str, dict[int, float]]] = [{}, {}]
    for metric, factor in factors.items():
        for side, each in enumerate(values):
            deviation, times = (0.6, 1.0) if factor == 0 else (0.03, factor if side else 1.0)
            each[metric] = {step: 10 * times * math.exp(random.gauss(0, deviation)) for step in STEPS[:steps]}
    return comparison_of(values[0], values[1], STEPS[:steps], STEPS[:steps])


@pytest.mark.parametrize(
    ("factor", "outcome", "words"),
    [
        (1.5, "slower", "B is slower than A: its steps take 1."),
        (0.5, "faster", "B is faster than A: its steps take 0."),
        (1.0, "same", "B is as fast as A, within 10 %: its steps take "),
        (0, "undecided", "The steps do not tell whether B is slower or faster than A: its steps take "),
    ],
)
def test_the_outcome_is_told_with_the_ratio_and_its_interval(factor: float, outcome: str, words: str) -> None:
    comparison = compared(duration=factor)
    conclusion = conclusion_of(comparison)
    [row] = comparison.table.to_dicts()
    assert conclusion.outcome == outcome
    assert conclusion.sentence.startswith(words)
    assert f"(interval {row['ratio_at_least']:.3g} to {row['ratio_at_most']:.3g})" in conclusion.sentence
    assert (f"{row['steps_needed']:,} steps of each would tell" in conclusion.sentence) == (
        outcome == "undecided"
    )


def test_one_step_does_not_tell_and_no_step_compares_nothing() -> None:
    assert "one step does not show how much steps scatter" in conclusion_of(compared(1, duration=2)).sentence
    conclusion = conclusion_of(comparison_of({"duration": {}}, {"duration": {1: 2.0}}, [], [1]))
    assert conclusion.outcome == "undecided"
    assert conclusion.sentence.startswith("Nothing is compared")


def test_the_points_name_every_other_metric_once() -> None:
    factors = {"duration": 1.5, "engine": 1.4, "tool": 1.0, "response_tokens": 1.3, "p99": 0}
    points = conclusion_of(compared(**factors)).points
    assert [point.partition(":")[0] for point in points] == [
        "Kinds of work that take a different time",
        "Also different, but these depend on the lengths of the replies, too",
        "The same within 10 %",
        "Too few steps to tell",
    ]
    for point, metric in zip(points, ("engine", "response_tokens", "tool", "p99"), strict=True):
        assert metric in point
        assert all(other not in point.partition(":")[2] for other in factors if other != metric)


def test_a_longer_step_without_slower_work_is_said_to_be_that() -> None:
    points = conclusion_of(compared(duration=1.5, engine=1.0, tool=0, response_tokens=1.5)).points
    assert points[0] == "The steps tell no difference in any kind of work: engine, tool"


def test_only_one_run_has_a_kind_of_work() -> None:
    comparison = comparison_of(
        {"duration": dict.fromkeys(STEPS, 2.0)},
        {"duration": dict.fromkeys(STEPS, 2.0), "reward": dict.fromkeys(STEPS, 1.0)},
        STEPS,
        STEPS,
    )
    assert "Only B has: reward" in conclusion_of(comparison).points
