"""Pools, servers that read alone, paces and routers of the engine behind every replay, by hand."""

import pytest

from sglang_instrument.analysis.timing.processor_sharing import Caller, SharedCall, SharingRules, serve


def ends_of(calls: list[list[SharedCall]], rules: SharingRules, cuts: tuple[float, ...] = ()) -> list[float]:
    """Return when each caller ends, whose calls begin so many seconds after the one before."""
    ends = list(cuts) or [0.0] * len(calls)

    def caller(number: int) -> Caller:
        now = 0.0
        for call in calls[number]:
            beside = tuple(other._replace(at_sec=now + other.at_sec) for other in call.beside)
            served = yield call._replace(at_sec=now + call.at_sec, beside=beside)
            now = served.end
        ends[number] = now

    serve((caller(number) for number in range(len(calls))), rules, cuts)
    return ends


def pooled(at_sec: float, sec: float, pool: int = 0) -> SharedCall:
    return SharedCall(at_sec, sec, 0.0, pool=pool)


def test_a_pool_gives_its_places_in_the_order_of_the_calls() -> None:
    rules = SharingRules(0.1, pools=(2, 1))
    calls = [[pooled(0.0, 3.0)], [pooled(0.1, 1.0)], [pooled(0.2, 2.0)], [pooled(0.3, 1.0, pool=1)]]
    assert ends_of(calls, rules) == pytest.approx([3.0, 1.1, 3.1, 1.3])


def test_calls_beside_each_other_are_all_awaited_and_all_need_a_place() -> None:
    together = pooled(0.0, 1.0)._replace(beside=(pooled(0.0, 2.0),))
    assert ends_of([[together]], SharingRules(0.1, pools=(2,))) == pytest.approx([2.0])
    assert ends_of([[together, pooled(0.5, 1.0)]], SharingRules(0.1, pools=(1,))) == pytest.approx([4.5])
    # The caller is cut; what it called goes on, and the next one waits for it.
    ends = ends_of([[together], [pooled(0.1, 1.0)]], SharingRules(0.1, pools=(1,)), cuts=(0.5, 9.0))
    assert ends == pytest.approx([0.5, 3.5])


def test_an_engine_that_reads_alone_decodes_nothing_meanwhile() -> None:
    rules = SharingRules(0.1, prefills_alone=True)
    # The first decodes from 1 to 2, stands while the second and third are read, and has 10 tokens left.
    calls = [[SharedCall(0.0, 1.0, 20.0)], [SharedCall(2.0, 0.5, 10.0)], [SharedCall(2.1, 0.5, 1.0)]]
    assert ends_of(calls, rules) == pytest.approx([4.0, 4.0, 3.1])
    # The second is cut while it is read: the third is read at once.
    assert ends_of(calls, rules, cuts=(9.0, 2.3, 9.0)) == pytest.approx([3.8, 2.3, 2.9])


def test_an_engine_has_a_pace_of_its_own() -> None:
    rules = SharingRules(0.1, 0.1, engines=2, paces=(1.0, 3.0))
    calls = [[SharedCall(0.0, 1.0, 10.0, engine=0)], [SharedCall(0.0, 1.0, 10.0, engine=1)]]
    assert ends_of(calls, rules) == pytest.approx([3.0, 9.0])


def test_a_call_leaves_the_engine_that_it_names_where_another_has_fewer() -> None:
    calls = [[SharedCall(0.01 * number, 0.0, 10.0, engine=0)] for number in range(2)]
    assert ends_of(calls, SharingRules(0.1, 0.1, engines=2)) == pytest.approx([2.98, 3.0], abs=0.05)
    assert ends_of(calls, SharingRules(0.1, 0.1, engines=2, to_fewest=True)) == pytest.approx([2.0, 2.01])
