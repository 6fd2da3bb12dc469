"""Runs are called different when they are, and only then; too few steps is an answer of its own."""

import math
from collections.abc import Callable
from pathlib import Path
from random import Random
from statistics import fmean, stdev
from typing import Any

import pytest
import scipy
from hypothesis import given, settings
from hypothesis import strategies as st
from queued import runs_made_once

from sglang_instrument.analysis import Run, compare_runs, open_run
from sglang_instrument.analysis.changes.compare import Comparison, Condition, comparison_of
from sglang_instrument.analysis.changes.metrics import METRICS
from sglang_instrument.analysis.changes.statistics import ALPHA, POWER, difference, holm
from sglang_instrument.testing import synthetic_run

values = st.lists(st.floats(0.01, 100.0), min_size=2, max_size=3)


def scattered(steps: int, deviation: float) -> list[float]:
    """Return a value a step, whose logarithms alternate around 0 and have this standard deviation."""
    signs = [(-1) ** step for step in range(steps)]
    logs = [sign - fmean(signs) for sign in signs]
    return [math.exp(log * deviation / stdev(logs)) for log in logs]


def power(steps: int, log: float, deviation: float, alpha: float) -> float:
    """Return how likely Student's t tells such runs apart, by the noncentral distribution."""
    freedom, away = 2 * (steps - 1), log / (deviation * math.sqrt(2 / steps))
    critical = scipy.stats.t.ppf(1 - alpha / 2, freedom)
    return float(scipy.stats.nct.sf(critical, freedom, away) + scipy.stats.nct.cdf(-critical, freedom, away))


def rows(compared: Comparison) -> dict[str, dict[str, Any]]:
    return {row["metric"]: row for row in compared.table.iter_rows(named=True)}


RunOf = Callable[..., Run]


@pytest.fixture(scope="module")
def run_of(tmp_path_factory: pytest.TempPathFactory) -> RunOf:
    """Return a run that is drawn from these fields of `Queued`."""
    return runs_made_once(tmp_path_factory.mktemp("runs"))


def compared(run_of: RunOf, steps: int = 10, **other: Any) -> Comparison:
    """A run of ten steps of 48 requests, and one that draws other replies."""
    return compare_runs(run_of(seed=1, steps=steps), run_of(seed=2, steps=steps, **other))


@given(values, values)
def test_two_samples_are_compared_by_t_on_logarithms(first: list[float], other: list[float]) -> None:
    logs = [[math.log(value) for value in each] for each in (first, other)]
    if min(max(each) - min(each) for each in logs) < 1e-3 or len(first) != len(other):
        return
    expected = scipy.stats.ttest_ind(logs[1], logs[0])
    ratio = difference(first, other)
    assert ratio.p_value() == pytest.approx(expected.pvalue, rel=1e-6)
    low, high = expected.confidence_interval(0.9)
    assert ratio.interval(0.1) == pytest.approx((math.exp(low), math.exp(high)), rel=1e-6)


@pytest.mark.parametrize("sizes", [(4, 5), (4, 12), (12, 4), (10, 100)])
def test_samples_of_other_sizes_are_compared_by_welchs_t(sizes: tuple[int, int]) -> None:
    first, other = scattered(sizes[0], 0.2), [2 * value for value in scattered(sizes[1], 0.5)]
    expected = scipy.stats.ttest_ind([*map(math.log, other)], [*map(math.log, first)], equal_var=False)
    assert difference(first, other).p_value() == pytest.approx(expected.pvalue)


@pytest.mark.parametrize(("sizes", "freedom"), [((2, 3), 1), ((2, 40), 1), ((3, 40), 2), ((40, 3), 2)])
def test_two_or_three_steps_have_no_more_freedom_however_many_the_other_run_has(
    sizes: tuple[int, int], freedom: int
) -> None:
    assert difference(*(scattered(size, 0.2) for size in sizes)).freedom == freedom


def test_pairs_are_compared_by_students_t_on_the_logarithms_of_their_ratios() -> None:
    first, other = [1.0, 7.0, 30.0], [1.2, 7.5, 40.0]
    expected = scipy.stats.ttest_rel([*map(math.log, other)], [*map(math.log, first)])
    assert difference(first, other, paired=True).p_value() == pytest.approx(expected.pvalue)


def test_holm_tests_the_most_likely_difference_at_its_share_and_the_next_at_what_is_left() -> None:
    assert holm([0.001, 0.03, 0.015], [1, 1, 1]) == pytest.approx([ALPHA / 3, ALPHA, ALPHA / 2])
    assert holm([0.02, 0.03, 0.5], [1, 1, 2]) == pytest.approx([ALPHA / 4, ALPHA / 4, ALPHA / 2])


@settings(max_examples=30)
@given(st.integers(0, 10**6), st.sampled_from([3, 8, 20]))
def test_an_interval_holds_1_just_when_no_difference_is_told(seed: int, steps: int) -> None:
    random = Random(seed)
    made = [
        {name: {step: random.lognormvariate(shift, 0.1) for step in range(steps)} for name in METRICS}
        for shift in (0.0, 0.1)
    ]
    for row in rows(comparison_of(*made, [*range(steps)], [*range(steps)])).values():
        assert (row["ratio_at_least"] <= 1 <= row["ratio_at_most"]) == (
            row["verdict"] in ("same", "too few steps")
        )


def test_equal_runs_with_other_replies_have_the_same_engine(run_of: RunOf) -> None:
    metrics = rows(compared(run_of))
    assert metrics["engine"]["verdict"] == "same"
    assert "higher" not in {row["verdict"] for row in metrics.values()}
    assert metrics["p99"]["verdict"] == "too few steps"
    assert metrics["p99"]["steps_needed"] > 10


def test_an_engine_that_takes_a_tenth_longer_is_found_in_ten_steps(run_of: RunOf) -> None:
    metrics = rows(compared(run_of, engine=1.1))
    assert metrics["engine"]["verdict"] == "higher"
    assert metrics["engine"]["ratio_at_least"] < 1.1 < metrics["engine"]["ratio_at_most"]
    assert {row["verdict"] for row in metrics.values()} <= {"higher", "same", "too few steps"}


def test_a_run_3_times_slower_is_called_slower_after_three_steps(run_of: RunOf) -> None:
    assert rows(compared(run_of, steps=3, engine=3.3))["engine"]["verdict"] == "higher"


def test_a_longer_queue_is_not_taken_for_a_slower_engine(run_of: RunOf) -> None:
    run = run_of(seed=1, steps=10, requests=24, load_sec=0.003)
    other = run_of(seed=2, steps=10, requests=48, load_sec=0.003)
    metrics = rows(compare_runs(run, other))
    assert metrics["engine"]["verdict"] == "same"
    assert metrics["p50"]["verdict"] == "higher"


def test_steps_are_paired_only_where_their_prompts_are_the_same(tmp_path: Path) -> None:
    shape: dict[str, Any] = {"workers": 2, "requests": 12}
    run = open_run(synthetic_run(tmp_path / "a", steps=6, seed=1, **shape))
    same = open_run(synthetic_run(tmp_path / "b", steps=6, seed=1, clock_skew={1: 2.0}, **shape))
    other = open_run(synthetic_run(tmp_path / "c", steps=6, seed=2, **shape))
    assert compare_runs(run, same).paired
    assert not compare_runs(run, other).paired
    assert set(rows(compare_runs(run, same))["duration"].items()) >= {("verdict", "same"), ("ratio", 1.0)}


def test_few_steps_are_paired_only_where_the_replies_are_as_long(run_of: RunOf) -> None:
    """The runs have the same prompts; in the last one a cap shortens the replies."""
    caps: list[dict[str, Any]] = [{}, {"engine": 3.3}, {"most_tokens": 200}]
    run, same, other = (run_of(steps=3, **cap) for cap in caps)
    assert compare_runs(run, same).paired
    assert rows(compare_runs(run, same))["duration"]["verdict"] == "higher"
    assert not compare_runs(run, other).paired


def test_a_cold_first_step_is_left_out_of_the_run_that_was_cold(run_of: RunOf) -> None:
    comparison = compared(run_of, steps=6, first_step=2.0)
    assert (comparison.cold, comparison.other_cold) == (False, True)
    assert (comparison.steps, comparison.other_steps) == ([1, 2, 3, 4, 5, 6], [2, 3, 4, 5, 6])
    assert rows(comparison)["engine"]["verdict"] == "same"


def test_runs_without_a_common_step_are_compared_as_a_whole(tmp_path: Path) -> None:
    run = open_run(synthetic_run(tmp_path / "a", steps=3, workers=1))
    other = open_run(synthetic_run(tmp_path / "b", steps=4, workers=1, first_step=10, seed=3))
    comparison = compare_runs(run, other)
    assert (comparison.steps, comparison.other_steps) == ([1, 2, 3], [10, 11, 12, 13])


def test_one_step_tells_nothing(run_of: RunOf) -> None:
    comparison = compared(run_of, steps=1, engine=3.0)
    assert set(comparison.table["verdict"]) == {"too few steps"}
    assert comparison.table["ratio_at_least"].is_null().all()
    asked = Condition("duration", above=True, limit=1.1)
    assert comparison.outcomes([asked])[0]["outcome"] == "too few steps"


def test_a_condition_holds_does_not_hold_or_needs_more_steps() -> None:
    random = Random(1)
    first, other = ([random.lognormvariate(shift, 0.1) for _ in range(10)] for shift in (0.0, 0.3))
    comparison = Comparison([], [], False, False, False, {"p99": difference(first, other)})
    limits = {1.1: "holds", 2.0: "does not hold", 1.35: "too few steps"}
    for limit, outcome in limits.items():
        (row,) = comparison.outcomes([Condition("p99", above=True, limit=limit)])
        assert row["outcome"] == outcome
    (below,) = comparison.outcomes([Condition("p99", above=False, limit=1.1)])
    assert below["outcome"] == "does not hold"
    (gone,) = comparison.outcomes([Condition("tool", above=True, limit=1.1)])
    assert (gone["outcome"], gone["ratio"], gone["steps_needed"]) == ("not measured", None, None)


@pytest.mark.parametrize("sizes", [(8, 8), (40, 40), (5, 200), (200, 5)])
def test_needed_steps_tell_an_equal_run_from_the_limit_in_four_of_five_cases_whatever_the_runs_have(
    sizes: tuple[int, int],
) -> None:
    needed = difference(*(scattered(size, 0.2) for size in sizes)).steps_needed(1.2)
    assert needed is not None
    assert power(needed, math.log(1.2), 0.2, ALPHA) >= POWER > power(needed - 1, math.log(1.2), 0.2, ALPHA)


def test_three_steps_that_scatter_by_a_quarter_tell_a_run_that_takes_3_times_as_long() -> None:
    """Half of the risk is spent on the time of a step: it decides at `ALPHA / 2`, whatever else differs."""
    usual = scattered(3, 0.25)
    slower = difference(usual, [3.3 * value for value in usual])
    assert slower.steps_to_tell(math.log(3.3), ALPHA / 2) == 3
    assert power(3, math.log(3.3), 0.25, ALPHA / 2) > POWER
    assert slower.p_value() < ALPHA / 2


def test_all_metrics_together_are_tested_at_the_nominal_risk() -> None:
    assert sum(holm([0.9, 0.8, 0.7, 0.6], [3, 1, 1, 1])) == pytest.approx(ALPHA)
