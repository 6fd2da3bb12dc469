"""A client's limit is found by what follows what: a request begins as another ends."""

import random

import pytest

from sglang_instrument.twin.agendas.limits import client_limit, client_limits


def served(dice, starts, limit, late_us):
    """Return begin and end of requests that come at these times, of which so many may be open."""
    open_until, requests = [], []
    for start in starts:
        begin = start
        if limit is not None and len(open_until) >= limit:
            open_until.sort()
            begin = max(start, open_until.pop(0) + dice.randrange(late_us))
        end = begin + round(1e6 * dice.lognormvariate(0.5, 0.8))
        open_until.append(end)
        requests.append((begin, end))
    return requests


@pytest.mark.parametrize("limit", [1, 4, 16])
def test_a_limit_is_found(limit):
    for seed in range(20):
        assert client_limit(served(random.Random(seed), [0] * 48, limit, 5_000)) == limit


@pytest.mark.parametrize("late_us", [50_000, 300_000])
def test_over_several_steps_it_is_found_also_of_a_busy_client(late_us):
    for seed in range(50):
        dice = random.Random(seed)
        cells = {(step, worker): served(dice, [0] * 24, 16, late_us) for step in (1, 2) for worker in (0, 1)}
        assert client_limits(cells) == dict.fromkeys(cells, 16)


def test_a_step_with_fewer_requests_than_that_has_none():
    dice = random.Random(1)
    cells = {(step, 0): served(dice, [0] * (4 if step == 2 else 24), 8, 5_000) for step in (1, 2, 3)}
    assert client_limits(cells) == {(1, 0): 8, (2, 0): None, (3, 0): 8}


def test_requests_that_come_at_their_own_times_have_none():
    for seed in range(100):
        dice = random.Random(seed)
        starts = sorted(round(1e6 * dice.uniform(0, 20)) for _ in range(60))
        assert client_limit(served(dice, starts, None, 1)) is None
        assert client_limit(served(dice, [0] * 48, None, 1)) is None
        cells = {(step, 0): served(dice, starts, None, 1) for step in range(3)}
        assert client_limits(cells) == dict.fromkeys(cells)
