"""`advise` names a router's policy where one server has the load of all, also where another gets no call."""

from types import SimpleNamespace

import polars as pl
import pytest

from sglang_instrument.analysis.advice.evidence.names import NamedSetting
from sglang_instrument.analysis.advice.levers.engine.router_policy import router_policy

OF_RANKS = NamedSetting("load_balance_method", "round_robin", "")
OF_ROUTER = NamedSetting("router_policy", "cache_aware", "")


def proposed(calls, setting=OF_ROUTER):
    """Return what the lever proposes for (worker, server) or (worker, server, step) of calls.

    Each queues half of its time.
    """
    rows = [
        {"worker": worker, "server": server, "step": sum(step), "queue_sec": 1.0, "call_sec": 2.0}
        for worker, server, *step in calls
    ]
    schema = {"worker": pl.Int64, "server": pl.String, "step": pl.Int64}
    schema |= {"queue_sec": pl.Float64, "call_sec": pl.Float64}
    grounds = SimpleNamespace(
        calls=pl.DataFrame(rows, schema=schema), mean={"rollout_sec": 10.0}, setting=lambda _: setting
    )
    return list(router_policy.propose(grounds))


@pytest.mark.parametrize("idle", [[(None, "b")], [(0, "b")]])
def test_a_server_with_all_the_load_is_named(idle):
    [proposal] = proposed([*[(0, "a"), (1, "a")] * 10, *idle])
    assert proposal.setting == "router_policy"
    assert proposal.rests_on.startswith("a has ")
    assert proposal.costs_sec == pytest.approx(5.0)


@pytest.mark.parametrize(
    "calls",
    [
        [(0, "a"), (1, "b"), (0, "b"), (1, "a")] * 5,  # even
        [(0, "a")] * 10 + [(1, "b")] * 2,  # a server for each worker
        [(0, "a"), (1, "a")] * 5,  # the only server
        [],
    ],
)
def test_elsewhere_nothing_is_routed_badly(calls):
    assert proposed(calls) == []


def test_servers_that_have_the_load_in_turn_are_named_for_the_router():
    in_turn = [(worker, "abc"[step % 3], step) for step in range(6) for worker in (0, 1)]
    [proposal] = proposed(in_turn)
    assert proposal.rests_on.startswith("in 6 of 6 steps, one of 3 servers has 3.0 times the mean load")
    assert proposal.proposed.startswith("least_load")
    assert (
        proposed([(worker, server, step) for step in range(6) for worker in (0, 1) for server in "abc"]) == []
    )


def test_what_spreads_calls_over_ranks_is_not_the_router_before_servers():
    filled = [*[(0, "a"), (1, "a")] * 10, (0, "b")]
    assert proposed(filled, OF_RANKS)[0].setting == "the router's --policy"
    of_ranks = [(worker, f"a scheduler_{server}") for worker, server in filled]
    assert proposed(of_ranks, OF_RANKS)[0].setting == "load_balance_method"
