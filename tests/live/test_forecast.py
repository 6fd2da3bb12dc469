"""A forecast of the step in progress: what it uses, what it says, and where it says nothing."""

from dataclasses import replace
from random import Random

import numpy as np
import pytest
from forecast_steps import drawn_steps, steps_of

from sglang_instrument.live.forecasting.forecast import History, forecast
from sglang_instrument.live.forecasting.history import NOT_YET, PastStep, Requests, StepSoFar
from sglang_instrument.testing import RunShape, SlowEngine
from sglang_instrument.testing.usual_run import usual_shape


def lasting(*sec, after_sec=1.0, **longest_sec):
    """Return a step of one worker whose requests begin at once, and last so long.

    The longest spans of events, or the longest one, are given by their names.
    """
    requests = Requests.of((f"r{place}", 0, 0.0, lasted_sec, [0.0]) for place, lasted_sec in enumerate(sec))
    return PastStep(requests, max(sec) + after_sec, spans_of(longest_sec))


def spans_of(longest_sec):
    return {event: np.atleast_1d(sec).tolist() for event, sec in longest_sec.items()}


def history_of(steps):
    history = History()
    for step in steps:
        history = history.after(step)
    return history


@pytest.fixture(scope="module")
def usual():
    """Ten steps of a usual run."""
    return [made.past for made in steps_of(usual_shape(1))]


def test_in_the_first_step_nothing_is_said():
    assert forecast(History(), lasting(3.0, 5.0).so_far(1.0)) is None


def test_intervals_hold_and_are_narrower_than_the_step(usual):
    history, held, asked = history_of(usual[:2]), 0, 0
    for step in usual[2:]:
        for share in (0.25, 0.5, 0.75):
            age_sec = share * step.end_sec
            forecasted = forecast(history, step.so_far(age_sec))
            assert 0 <= forecasted.low_sec < forecasted.high_sec < 2 * step.end_sec
            held += forecasted.low_sec <= step.end_sec - age_sec <= forecasted.high_sec
            asked += 1
        history = history.after(step)
    assert held / asked > 0.6


def test_the_same_question_gets_the_same_answer(usual):
    now = usual[3].so_far(10.0)
    assert forecast(history_of(usual[:3]), now) == forecast(history_of(usual[:3]), now)


def test_an_open_request_is_compared_with_those_that_lasted_longer():
    # Of the requests that lasted longer than 40 s, all took 60 s.
    history = history_of([lasting(*([5.0] * 30), *([60.0] * 10), after_sec=0.0) for _ in range(6)])
    now = replace(lasting(*([5.0] * 39), 60.0).so_far(40.0))
    forecasted = forecast(history, now)
    assert forecasted.low_sec == pytest.approx(20, abs=4)
    assert forecasted.high_sec == pytest.approx(20, abs=5)
    assert forecasted.decides == (0, "r39")
    assert forecasted.decides_share == pytest.approx(1)


def test_a_step_with_a_slow_engine_is_forecast_to_take_longer():
    shape = RunShape(steps=5, workers=2, requests=40, seed=3)
    usual, slow = (
        [step.past for step in steps_of(shape, causes)] for causes in ([], [SlowEngine(5, None, 4.0)])
    )
    history = history_of(usual[:4])
    age_sec = 0.5 * slow[4].end_sec
    forecasted = forecast(history, slow[4].so_far(age_sec))
    as_usual = forecast(history, usual[4].so_far(0.5 * usual[4].end_sec))
    assert sum((forecasted.low_sec, forecasted.high_sec)) > 1.3 * sum((as_usual.low_sec, as_usual.high_sec))


def test_requests_that_have_not_begun_make_the_step_longer():
    steps = [made.past for made in drawn_steps(0, slots=4, turns=(1, 3), requests=32)]
    history, now = history_of(steps[:6]), steps[6].so_far(0.3 * steps[6].end_sec)
    assert len(now.requests.ids) < now.expected
    all_begun = replace(now, expected=len(now.requests.ids))
    assert forecast(history, now).low_sec > forecast(history, all_begun).high_sec
    # Where nobody knows how many there will be, there will be as many as before.
    unknown = forecast(history, replace(now, expected=None))
    assert unknown.low_sec == pytest.approx(forecast(history, now).low_sec, rel=0.1)


def test_more_requests_than_ever_begin_now():
    history = history_of([lasting(*range(1, 21), after_sec=0.0) for _ in range(4)])
    now = lasting(*([1.0] * 20)).so_far(30.0)
    forecasted = forecast(history, replace(now, expected=40))
    assert forecasted.decides is None
    assert 15 < forecasted.high_sec < 60


def test_when_all_requests_ended_what_follows_is_left():
    history = history_of([lasting(3.0, 5.0, after_sec=10.0 + step) for step in range(5)])
    forecasted = forecast(history, lasting(3.0, 5.0, after_sec=12.0).so_far(9.0))
    assert 4 < forecasted.low_sec < forecasted.high_sec < 20
    assert forecasted.decides is None
    late = forecast(history, lasting(3.0, 5.0, after_sec=50.0).so_far(40.0))
    assert 0 <= late.low_sec < late.high_sec


def test_what_follows_may_take_far_longer_than_requests():
    history = history_of([lasting(0.001, 0.002, after_sec=60.0) for _ in range(4)])
    forecasted = forecast(history, lasting(0.001, 0.002, after_sec=60.0).so_far(0.0015))
    assert forecasted.low_sec == pytest.approx(60, rel=0.1)
    assert forecasted.high_sec == pytest.approx(60, rel=0.1)


def test_a_thousand_workers_do_not_make_the_step_endless():
    random = np.random.default_rng(1)
    steps = []
    for _ in range(4):
        sec = random.lognormal(1, 0.5, 4000)
        rows = ((f"r{place}", place % 1000, 0.0, lasted_sec, [0.0]) for place, lasted_sec in enumerate(sec))
        steps.append(PastStep(Requests.of(rows), sec.max() + 1))
    forecasted = forecast(history_of(steps[:3]), steps[3].so_far(2.0))
    assert forecasted.high_sec < 3 * max(step.end_sec for step in steps)


def test_turns_need_not_be_known(usual):
    steps = [
        replace(step, requests=replace(step.requests, turns_sec=step.requests.turns_sec[:, :0]))
        for step in usual
    ]
    forecasted = forecast(history_of(steps[:4]), steps[4].so_far(10.0))
    assert 0 < forecasted.low_sec < forecasted.high_sec


def test_a_request_without_an_equal_widens_the_interval():
    history = history_of([lasting(*range(1, 41)) for _ in range(4)])
    usual, odd = (
        forecast(history, lasting(*range(1, 40), sec).so_far(age)) for sec, age in ((40, 30.0), (400, 90.0))
    )
    assert odd.high_sec - odd.low_sec > usual.high_sec - usual.low_sec
    assert odd.decides == (0, "r39")


def test_checks_that_held_badly_widen_the_next_interval():
    random = Random(0)
    wild = [lasting(*(random.uniform(1, 4) * scale for _ in range(30))) for scale in (1, 6, 1, 9, 2, 8)]
    calm = [lasting(*(random.uniform(1, 4) for _ in range(30))) for _ in range(6)]
    low, high = zip(history_of(wild).levels, history_of(calm).levels, strict=True)
    assert low[0] < low[1]
    assert high[0] > high[1]


def test_a_history_is_bounded_and_never_changed(usual):
    history = history_of(usual[:3])
    before = history.checks
    longer = history.after(usual[3])
    assert history.checks == before
    assert len(longer.checks) == len(before) + 1
    assert len(history_of([*usual, *usual]).steps) == 8


def test_aborted_requests_teach_nothing():
    requests = Requests.of([("done", 0, 0.0, 4.0, [0.0]), ("aborted", 0, 0.0, NOT_YET, [0.0])])
    history = History().after(PastStep(requests, 5.0))
    assert history.steps[0].requests.ids == ["done"]
    assert History().after(PastStep(requests.chosen(np.array([1])), 5.0)) == History()


def test_a_step_of_which_nothing_began_yet():
    history = history_of([lasting(3.0, 5.0, 8.0) for _ in range(4)])
    nothing = lasting(1.0).requests.chosen(np.array([], dtype=np.int64))
    forecasted = forecast(history, StepSoFar(0.5, nothing, expected=3))
    assert 1 < forecasted.low_sec < forecasted.high_sec < 40
    assert forecasted.decides is None
    assert forecast(history, StepSoFar(0.5, nothing)) is not None


@pytest.mark.parametrize("sec", [0.0, 1e-6, 1e5])
def test_no_duration_is_too_short_or_too_long(sec):
    history = history_of([lasting(sec, sec) for _ in range(3)])
    forecasted = forecast(history, lasting(sec, sec).so_far(sec / 2))
    assert 0 <= forecasted.low_sec <= forecasted.high_sec < np.inf


def test_workers_that_were_never_seen_are_as_fast_as_the_others():
    history = history_of([lasting(*range(1, 31)) for _ in range(4)])
    now = lasting(*range(1, 31)).so_far(15.0)
    moved = replace(now, requests=replace(now.requests, worker=now.requests.worker + 700))
    forecasted = forecast(history, moved)
    assert forecasted.decides == (700, forecasted.decides[1])
    assert forecasted.high_sec == pytest.approx(forecast(history, now).high_sec, rel=0.3)


def test_many_requests_take_little_time_and_keep_the_longest():
    random = np.random.default_rng(0)
    steps = [lasting(*random.lognormal(2, 1, 20_000)) for _ in range(4)]
    history = history_of(steps[:3])
    forecasted = forecast(history, steps[3].so_far(5.0))
    longest = sorted(step.end_sec - 5 for step in steps)
    assert longest[0] * 0.5 < forecasted.low_sec
    assert forecasted.high_sec < longest[-1] * 3


class TestHangs:
    """A request is named once its span has left the range of all of its event that ended."""

    history = history_of([lasting(*range(1, 31), tool=4.0 + step / 4) for step in range(4)])

    def now(self, sec, event="tool", history=None, **longest_sec):
        step = lasting(*range(1, 30), 10_000.0).so_far(40.0)
        step = replace(step, open_events={29: (event, sec)}, longest_sec=spans_of(longest_sec))
        return forecast(history or self.history, step).will_not_end

    def test_within_10_s_and_not_at_once(self):
        assert self.now(4.7) == ()
        assert self.now(4.75 + 4.0) == ()
        assert self.now(4.75 + 6.0) == ((0, "r29"),)

    def test_a_longer_one_that_ended_in_this_step_counts(self):
        assert self.now(12.0, tool=11.0) == ()
        assert self.now(18.0, tool=11.0) == ((0, "r29"),)

    def test_of_an_event_that_never_ended_nothing_is_known(self):
        assert self.now(500.0, event="reward") == ()

    def test_after_one_step_it_takes_twice_as_long_as_the_longest(self):
        history = history_of([lasting(*range(1, 31), tool=20.0)])
        assert self.now(30.0, history=history) == ()
        assert self.now(41.0, history=history) == ((0, "r29"),)

    def test_where_the_longest_vary_much_it_takes_longer(self):
        history = history_of([lasting(*range(1, 31), tool=sec) for sec in (10.0, 90.0, 20.0, 40.0)])
        assert self.now(150.0, history=history) == ()
        assert self.now(300.0, history=history) == ((0, "r29"),)

    def test_where_the_longest_of_a_step_are_far_apart_it_takes_longer(self):
        capped = history_of([lasting(*range(1, 31), tool=[59.0, 59.5, 60.0, 60.2]) for _ in range(4)])
        uncapped = history_of([lasting(*range(1, 31), tool=[8.0, 15.0, 30.0, 60.2]) for _ in range(4)])
        assert self.now(70.0, history=capped) == ((0, "r29"),)
        assert self.now(300.0, history=uncapped) == ()

    def test_the_forecast_is_that_of_the_others(self):
        step = lasting(*range(1, 29), 50.0, 10_000.0).so_far(35.0)
        hung = replace(step, open_events={29: ("tool", 30.0)})
        forecasted, without = forecast(self.history, hung), forecast(self.history, step)
        assert forecasted.will_not_end == ((0, "r29"),)
        assert forecasted.decides == (0, "r28")
        assert forecasted.decides_share > without.decides_share


def test_a_hang_of_the_generator_is_named(usual):
    made = list(steps_of(usual_shape(2, steps=5)))
    history = history_of([step.past for step in made[:4]])
    stuck, call = made[4].hung(Random(4))
    longest_sec = max(max(step.past.longest_sec[call.event]) for step in made)
    assert forecast(history, stuck.as_of(call.start_sec + longest_sec)).will_not_end == ()
    named = forecast(history, stuck.as_of(call.start_sec + 4 * longest_sec)).will_not_end
    assert [request_id for _, request_id in named] == [call.request_id]


@pytest.mark.parametrize("seed", range(20))
def test_clocks_that_jump_break_nothing(seed):
    random = np.random.default_rng(seed)

    def odd(most):
        rows = []
        for place in range(int(random.integers(1, 8))):
            begun, ended, *turns = random.choice([-1e12, -5.0, 0.0, 1e-9, 3.0, 8.0, 1e9, 1e15], 2 + most)
            ended = NOT_YET if most and random.random() < 0.5 else ended
            rows.append((f"r{place}", int(random.integers(0, 3)), begun, ended, turns))
        return Requests.of(rows)

    history = history_of(PastStep(odd(place % 3), random.choice([-1.0, 0.0, 5.0, 1e9])) for place in range(5))
    if history.steps:
        forecasted = forecast(history, StepSoFar(random.choice([-5.0, 0.0, 4.0, 1e9]), odd(2), expected=9))
        assert not np.isnan([forecasted.low_sec, forecasted.high_sec]).any()
        assert forecasted.low_sec <= forecasted.high_sec
