"""Name the policy of a router that lets requests queue at one server while another is half empty."""

from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import polars as pl

from sglang_instrument.analysis.advice.evidence.grounds import Grounds
from sglang_instrument.analysis.advice.evidence.lever import ProposedChange, lever
from sglang_instrument.analysis.advice.evidence.names import NAMES, NamedSetting

_UNEVEN: Final = 1.5  # times the mean load
_LEAST_QUEUE: Final = 0.1  # of the calls' time
_FEWEST_STEPS: Final = 3
_MOST: Final = 0.5  # of the steps
_OF_RANKS: Final = "load_balance_method"
_CACHE_AWARE: Final = "cache_aware"
_BY_LOAD: Final = "by load, such as least_load or cache_aware"
_BESIDE_CACHE: Final = "least_load, or a smaller threshold of imbalance"


class _Uneven(NamedTuple):
    """How a router shared requests out: the share of its steps' time that it cost, and what shows it."""

    cost_share: float
    rests_on: str


@lever("router policy", "named", "uneven-servers", "servers-in-turn", "conversations-moved")
def router_policy(grounds: Grounds) -> Iterator[ProposedChange]:
    """Yield another policy where requests queue at one server of the run, or at another one in each step.

    A server that is there and gets no call of the rollout is empty. A policy by cache sends prompts that
    begin alike to one server, until its load is beyond the others' by a threshold.
    """
    named = grounds.calls.drop_nulls(["server", "queue_sec", "call_sec"])
    servers_of_worker = pl.col("server").n_unique().over("worker")
    workers_of_server = pl.col("worker").n_unique().over("server")
    # A worker with an engine of its own routes nothing.
    is_routed = pl.col("worker").is_not_null() & ((servers_of_worker > 1) | (workers_of_server > 1))
    if named["server"].n_unique() < 2 or not named.select(is_routed.any()).item():
        return
    # Without the queue: one at a server that runs few requests at once is no load that a router sent there.
    running = pl.when(is_routed).then(pl.col("call_sec") - pl.col("queue_sec")).otherwise(0.0)
    named = named.with_columns(running=running)
    uneven = _of_run(named) or _in_turn(named)
    if uneven is None:
        return
    setting = grounds.setting("router")
    if setting.name.endswith(_OF_RANKS) and not any(" " in name for name in named["server"].unique()):
        setting = NamedSetting(NAMES["router"].usual, None, "")  # SGLang's own is between ranks of one server
    yield ProposedChange(
        setting.name,
        setting.value,
        _BESIDE_CACHE if setting.value == _CACHE_AWARE else _BY_LOAD,
        costs="later turns may lose their cached prefix",
        rests_on=uneven.rests_on,
        command="servers LOGS",
        costs_sec=uneven.cost_share * (grounds.mean["rollout_sec"] or 0.0),
        not_recorded=setting.not_recorded,
    )


def _of_run(calls: pl.DataFrame) -> _Uneven | None:
    by_server = _loads(calls, ["server"]).sort("load")
    busiest = by_server.row(-1, named=True)
    mean: Any = by_server["load"].mean()
    if busiest["load"] < _UNEVEN * mean or busiest["queue"] < _LEAST_QUEUE:
        return None
    words = f"{busiest['server']} has {busiest['load'] / mean:.1f} times the mean load; its calls queue"
    return _Uneven(busiest["queue"], words)


def _in_turn(calls: pl.DataFrame) -> _Uneven | None:
    """Return how uneven the steps are, if most of them are."""
    servers, steps = calls["server"].n_unique(), calls["step"].n_unique()
    loads = _loads(calls.drop_nulls("step"), ["step", "server"])
    times = pl.col("load") * servers / pl.col("load").sum().over("step")
    busiest = loads.with_columns(times=times).sort("load").group_by("step").last()
    uneven = busiest.filter(pl.col("times") >= _UNEVEN, pl.col("queue") >= _LEAST_QUEUE)
    if len(uneven) < max(_FEWEST_STEPS, _MOST * steps):
        return None
    middle: Any = uneven["times"].median()
    words = (
        f"in {len(uneven)} of {steps} steps, one of {servers} servers has {middle:.1f} times the mean load, "
        "and its calls queue"
    )
    return _Uneven(float(uneven["queue"].sum()) / steps, words)


def _loads(calls: pl.DataFrame, key: list[str]) -> pl.DataFrame:
    """Return load, the seconds that calls ran, and queue, the share of the calls' time."""
    queue = pl.col("queue_sec").sum() / pl.col("call_sec").sum()
    return calls.group_by(key).agg(load=pl.col("running").sum(), queue=queue)
