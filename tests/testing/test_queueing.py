"""The queueing engine serves calls as a plain loop over all of them does."""

from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_instrument.analysis.timing.processor_sharing import Served
from sglang_instrument.testing.simulation.queueing import (
    Caller,
    Engine,
    EngineState,
    SimulatedCall,
    serve,
)

NEVER = float("inf")


@dataclass
class Asked:
    """A call of a made-up request: `wait_sec` after the one before (or the begin) it is made."""

    wait_sec: float
    prompt_tokens: int
    work: float
    extra_sec: float = 0.0


seconds = st.integers(0, 40).map(lambda tick: tick / 8)
calls = st.builds(Asked, seconds, st.integers(0, 50), st.integers(1, 60).map(float), seconds)
callers = st.lists(st.lists(calls, min_size=1, max_size=3), max_size=6)
engines = st.builds(
    Engine,
    token_sec=st.sampled_from([0.01, 0.1]),
    load_sec=st.sampled_from([0.0, 0.02]),
    prefill_sec=st.sampled_from([0.0, 0.01]),
    call_sec=st.sampled_from([0.0, 0.3]),
    most_running=st.sampled_from([None, 1, 2, 3]),
)
states = st.builds(
    EngineState,
    factor=st.sampled_from([1.0, 2.5]),
    stalls=st.lists(st.tuples(seconds, seconds).map(lambda both: (both[0], both[0] + both[1])), max_size=2),
)


def caller(made: list[Asked], begin: float, served: list[Served]) -> Caller:
    now = begin
    for call in made:
        served.append(
            (yield SimulatedCall(now + call.wait_sec, call.prompt_tokens, call.work, call.extra_sec))
        )
        now = served[-1].end


def simulated(engine: Engine, state: EngineState, made: list[list[Asked]]) -> list[list[Served]]:
    served: list[list[Served]] = [[] for _ in made]
    serve(engine, state, 10.0, [caller(calls, 10.0, into) for calls, into in zip(made, served, strict=True)])
    return served


class Plain:
    """A call in the plain loop, and what is left of it."""

    def __init__(self, owner: int, asked: Asked, time_sec: float, number: int) -> None:
        self.owner, self.asked, self.time_sec, self.number = owner, asked, time_sec, number
        self.admitted = self.first = -1.0
        self.prefill_sec, self.left = 0.0, asked.work


def plainly(engine: Engine, state: EngineState, made: list[list[Asked]]) -> list[list[Served]]:
    """Go from one change to the next, and look at each call each time."""
    stalls = [(10.0 + start, 10.0 + end) for start, end in state.stalls]
    served: list[list[Served]] = [[] for _ in made]
    numbers = iter(range(10_000))
    coming = [Plain(i, calls[0], 10.0 + calls[0].wait_sec, next(numbers)) for i, calls in enumerate(made)]
    running: list[Plain] = []
    now = 10.0
    while coming or running:
        most = NEVER if engine.most_running is None else engine.most_running
        for call in sorted(coming, key=lambda call: (call.time_sec, call.number)):
            if call.time_sec <= now + 1e-12 and len(running) < most:
                coming.remove(call)
                running.append(call)
                call.admitted = now
                prefill_sec = engine.call_sec + call.asked.prompt_tokens * engine.prefill_sec
                call.prefill_sec = prefill_sec * state.factor + call.asked.extra_sec
        still = any(start <= now + 1e-12 and now + 1e-12 < end for start, end in stalls)
        token_sec = (engine.token_sec + engine.load_sec * len(running)) * state.factor
        for call in running:
            if call.prefill_sec <= 1e-12 and call.first < 0 and not still:
                call.first = now
        changes = [time_sec for span in stalls for time_sec in span if time_sec > now + 1e-12]
        changes += [call.time_sec for call in coming if call.time_sec > now + 1e-12]
        if not still:
            changes += [
                now + (call.prefill_sec if call.first < 0 else call.left * token_sec) for call in running
            ]
        until = min(changes)
        for call in running if not still else []:
            if call.first < 0:
                call.prefill_sec -= until - now
            else:
                call.left -= (until - now) / token_sec
        now = until
        for call in [call for call in running if call.first >= 0 and call.left <= 1e-9]:
            running.remove(call)
            done = served[call.owner]
            done.append(Served(call.admitted, call.first, now))
            if len(done) < len(made[call.owner]):
                asked = made[call.owner][len(done)]
                coming.append(Plain(call.owner, asked, now + asked.wait_sec, next(numbers)))
    return served


@settings(max_examples=60, deadline=None)
@given(engine=engines, state=states, made=callers)
def test_calls_are_served_as_in_a_plain_loop(
    engine: Engine, state: EngineState, made: list[list[Asked]]
) -> None:
    # What happens at the same time may happen in any order, so nothing does.
    made = [
        [
            replace(call, wait_sec=call.wait_sec + 0.0137 * (owner + 1), extra_sec=call.extra_sec + 0.00317)
            for call in asked
        ]
        for owner, asked in enumerate(made)
    ]
    expected = plainly(engine, state, made)
    for mine, plain in zip(simulated(engine, state, made), expected, strict=True):
        assert len(mine) == len(plain)
        for call, other in zip(mine, plain, strict=True):
            assert list(call) == pytest.approx(list(other), abs=1e-6)


def test_a_call_alone_takes_its_prefill_and_its_tokens() -> None:
    engine = Engine(token_sec=0.02, load_sec=0.01, prefill_sec=0.001, call_sec=0.5)
    [[served]] = simulated(engine, EngineState(), [[Asked(0.0, 100, 50.0)]])
    assert served.first == pytest.approx(10.6)
    assert served.end == pytest.approx(10.6 + 50 * 0.03)
    [[slow]] = simulated(engine.times(2.0), EngineState(), [[Asked(0.0, 100, 50.0)]])
    assert slow.end - 10 == pytest.approx(2 * (served.end - 10))


def test_two_calls_side_by_side_are_slower_than_one() -> None:
    engine = Engine(token_sec=0.02, load_sec=0.01)
    both = simulated(engine, EngineState(), [[Asked(0.0, 0, 50.0)], [Asked(0.0, 0, 100.0)]])
    assert both[0][0].end == pytest.approx(10 + 50 * 0.04)
    assert both[1][0].end == pytest.approx(10 + 50 * 0.04 + 50 * 0.03)


def test_a_full_engine_lets_calls_wait() -> None:
    engine = Engine(token_sec=0.02, most_running=1)
    first, second = simulated(engine, EngineState(), [[Asked(0.0, 0, 50.0)], [Asked(0.5, 0, 50.0)]])
    assert (first[0].end, second[0].admitted, second[0].end) == pytest.approx((11.0, 11.0, 12.0))


def test_an_engine_that_stands_still_delays_all_calls_by_that() -> None:
    state = EngineState(stalls=[(0.5, 30.5)])
    ends = [calls[0].end for calls in simulated(Engine(), state, [[Asked(0.0, 0, n)] for n in (50.0, 100.0)])]
    assert ends == pytest.approx([41.0, 42.0])
