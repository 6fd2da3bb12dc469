"""The one engine behind every replay serves calls as a plain loop over all of them does."""

from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sglang_instrument.analysis.timing.processor_sharing import (
    NEVER,
    Caller,
    Served,
    SharedCall,
    SharingRules,
    serve,
)

ticks = st.integers(0, 40).map(lambda tick: tick / 8)
planned_calls = st.lists(st.tuples(ticks, ticks, st.integers(1, 60).map(float)), min_size=1, max_size=3)
all_rules = st.builds(
    SharingRules,
    token_sec=st.sampled_from([0.013, 0.1]),
    crowd_sec=st.sampled_from([0.0, 0.017]),
    limit=st.sampled_from([None, 1, 2, 3]),
    engines=st.integers(1, 3),
    stalls=st.sampled_from([(), ((1.03, 2.51),), ((0.31, 0.52), (3.07, 4.13))]),
)


def played(
    plans: list[list[tuple[float, float, float]]], cuts: list[float], rules: SharingRules
) -> list[float]:
    """Return when each caller ends by the engine: of the wait, prefill and work of its calls."""
    ends = list(cuts)

    def caller(number: int) -> Caller:
        now = 0.0
        for wait_sec, prefill_sec, work in plans[number]:
            served: Served = yield SharedCall(now + wait_sec + number * 1e-3, prefill_sec, work)
            assert served.admitted <= served.first <= served.end
            now = served.end
        ends[number] = now

    serve((caller(number) for number in range(len(plans))), rules, cuts)
    return ends


@dataclass
class Plain:
    """A caller of the plain loop: its calls to come, and what is left of the one in hand."""

    calls: list[tuple[float, float, float]]
    number: int
    cut: float
    wait_until: float = 0.0
    state: str = "waiting"  # then queued, prefilling, decoding, done
    left: float = 0.0
    engine: int = -1
    end: float = NEVER


def plain(
    plans: list[list[tuple[float, float, float]]], cuts: list[float], rules: SharingRules
) -> list[float]:
    """Return the same by a loop over all callers that knows no heap, no clock of tokens, and no numbers."""
    callers = [
        Plain(list(calls), number, cut) for number, (calls, cut) in enumerate(zip(plans, cuts, strict=True))
    ]
    for each in callers:
        each.wait_until = each.calls[0][0] + each.number * 1e-3
    queues: list[list[Plain]] = [[] for _ in range(rules.engines)]
    given_at = [number - rules.engines for number in range(rules.engines)]
    now, given_count = 0.0, 0

    def inside(engine: int) -> list[Plain]:
        return [
            each for each in callers if each.engine == engine and each.state in ("prefilling", "decoding")
        ]

    while any(each.state != "done" for each in callers):
        stalled = any(start <= now < end for start, end in rules.stalls)

        def pace(each: Plain, stalled: bool = stalled) -> float:
            if stalled:
                return 0.0
            if each.state == "prefilling":
                return 1.0
            return 1 / (rules.token_sec + rules.crowd_sec * len(inside(each.engine)))

        moments = [moment for stall in rules.stalls for moment in stall if moment > now]
        for each in callers:
            if each.state != "done":
                moments.append(each.cut)
            if each.state == "waiting":
                moments.append(each.wait_until)
            if each.state in ("prefilling", "decoding") and pace(each):
                moments.append(now + each.left / pace(each))
        later = min(moments)
        for each in callers:
            if each.state in ("prefilling", "decoding"):
                each.left -= (later - now) * pace(each)
        now = later
        for each in callers:
            if each.state == "decoding" and each.left < 1e-9:
                each.state, each.engine = "waiting", -1
                each.calls.pop(0)
                if each.calls:
                    each.wait_until = now + each.calls[0][0] + each.number * 1e-3
                else:
                    each.state, each.end = "done", now
        for each in callers:
            if each.state != "done" and each.cut <= now:
                each.state, each.end, each.engine = "done", each.cut, -1
        for each in callers:
            if each.state == "waiting" and each.wait_until <= now:
                loads = [
                    (len(inside(number)) + len(queues[number]), given_at[number], number)
                    for number in range(rules.engines)
                ]
                engine = min(loads)[2]
                given_count += 1
                given_at[engine] = given_count
                each.state = "queued"
                queues[engine].append(each)
        for engine, queue in enumerate(queues):
            queue[:] = [each for each in queue if each.state == "queued"]
            while queue and (rules.limit is None or len(inside(engine)) < rules.limit):
                each = queue.pop(0)
                each.state, each.engine, each.left = "prefilling", engine, each.calls[0][1]
        for each in callers:
            if each.state == "prefilling" and each.left < 1e-9:
                each.state, each.left = "decoding", each.calls[0][2]
    return [each.end for each in callers]


@settings(max_examples=150, deadline=None)
@given(
    st.lists(st.tuples(planned_calls, st.sampled_from([NEVER, NEVER, 2.003, 9.007])), max_size=6), all_rules
)
def test_it_serves_as_a_plain_loop_does(
    planned: list[tuple[list[tuple[float, float, float]], float]], rules: SharingRules
) -> None:
    plans, cuts = [plan for plan, _ in planned], [cut for _, cut in planned]
    assert played(plans, cuts, rules) == pytest.approx(plain(plans, cuts, rules), abs=1e-6)


def test_a_call_that_is_cut_makes_room_for_the_next() -> None:
    plans = [[(0.0, 0.0, 100.0)], [(0.0, 0.0, 100.0)]]
    assert played(plans, [2.0, NEVER], SharingRules(0.1, limit=1)) == pytest.approx([2.0, 12.0])


def test_an_engine_that_takes_no_time_ends_calls_at_once() -> None:
    assert played([[(1.0, 0.0, 100.0)]], [NEVER], SharingRules(0.0)) == [1.0]
