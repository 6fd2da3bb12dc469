"""The median slope is that of all pairs, and needs neither their memory nor their time."""

import tracemalloc
from random import Random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_instrument.analysis.verdict.evidence.series import slopes
from sglang_instrument.analysis.verdict.evidence.series.slopes import median_slope, reaches

series = st.lists(st.one_of(st.floats(-5, 5), st.integers(-3, 3).map(float)), min_size=2, max_size=60).map(
    np.array
)


def of_all_pairs(values: np.ndarray) -> list[float]:
    return [
        (values[later] - values[earlier]) / (later - earlier)
        for later in range(len(values))
        for earlier in range(later)
    ]


@settings(max_examples=60, deadline=None)
@given(series)
def test_bisection_gives_the_median_of_all_pairs(values: np.ndarray) -> None:
    pairs = len(values) * (len(values) - 1) // 2
    low, high = (slopes._slope_of_rank(values, rank) for rank in ((pairs - 1) // 2, pairs // 2))
    assert (low + high) / 2 == pytest.approx(np.median(of_all_pairs(values)), rel=1e-9, abs=1e-9)
    assert median_slope(values) == pytest.approx(np.median(of_all_pairs(values)), rel=1e-12, abs=1e-12)


@settings(max_examples=60, deadline=None)
@given(series, st.floats(-2, 2))
def test_a_slope_is_reached_if_half_of_all_pairs_reach_it(values: np.ndarray, slope: float) -> None:
    above = sum(each >= slope - 1e-12 for each in of_all_pairs(values))
    surely = sum(each >= slope + 1e-12 for each in of_all_pairs(values))
    pairs = len(values) * (len(values) - 1) // 2
    assert reaches(values, slope) <= (2 * above >= pairs)
    assert reaches(values, slope) >= (2 * surely >= pairs)


def test_long_runs_need_little_memory() -> None:
    random = Random(1)
    values = np.array([0.001 * number + random.gauss(0, 5) for number in range(6_000)])
    tracemalloc.start()
    try:
        assert median_slope(values) == pytest.approx(0.001, rel=0.5)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 10e6  # all pairs would take 144 MB
