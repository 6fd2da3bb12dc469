"""Step times go on as they have: a forecast of the sum of those to come holds as often as it says."""

import random
from statistics import mean

import numpy as np
import pytest

from sglang_instrument.analysis.outlook.trend import FEWEST, future_of


def made(steps, growth, noise, seed):
    """Return step times that grow by a factor over all steps, with noise."""
    draw = random.Random(seed)
    return [60 * growth ** (step / steps) * draw.lognormvariate(0, noise) for step in range(steps)]


def test_equal_steps_go_on_and_their_sum_is_narrow_beside_that_of_scattered_ones():
    even = future_of([60.0] * 40, 60)
    assert even.ends(0.5)[-1] == pytest.approx(3_600, rel=0.02)
    spreads = [
        future.ends(0.9)[-1] - future.ends(0.1)[-1] for future in (even, future_of(made(40, 1.0, 0.3, 0), 60))
    ]
    assert spreads[0] < spreads[1]


@pytest.mark.parametrize("growth", [1.0, 1.5, 0.7])
def test_growth_goes_on(growth):
    truth = made(300, growth, 0.1, 1)
    future = future_of(truth[:150], 150)
    assert future.ends(0.1)[-1] < sum(truth[150:]) < future.ends(0.9)[-1]
    flat = 150 * mean(truth[:150])
    assert (future.ends(0.5)[-1] > flat) == (growth > 1.0) or growth == 1.0


def test_ends_of_later_steps_come_later_and_their_intervals_are_wider():
    future = future_of(made(60, 1.2, 0.2, 2), 90)
    low, middle, high = (future.ends(share) for share in (0.1, 0.5, 0.9))
    assert np.all(np.diff(middle) > 0)
    assert np.all(low < middle)
    assert np.all(middle < high)
    assert high[-1] - low[-1] > high[9] - low[9]


def test_work_of_every_tenth_step_comes_so_again_and_other_work_by_chance():
    even = [10.0] * 40
    saved = [100.0 if step % 10 == 9 else 0.0 for step in range(40)]
    regular = future_of(even, 25, [saved])
    assert regular.ends(0.5)[-1] == pytest.approx(25 * 10 + 200, rel=0.03)
    assert regular.ends(0.5)[8] < 100 < regular.ends(0.5)[9]
    chance = [100.0 if step in (3, 8, 20, 33) else 0.0 for step in range(40)]
    assert future_of(even, 400, [chance]).ends(0.5)[-1] == pytest.approx(4_000 + 4_000, rel=0.1)


def test_too_few_steps_are_an_error():
    with pytest.raises(ValueError, match="too few"):
        future_of([1.0] * (FEWEST - 1), 3)
