"""Name settings of the engine that cost time and cannot be simulated: speculation, kernels, policies."""

from collections.abc import Iterator
from typing import Any, Final

import polars as pl

from sglang_instrument.analysis.advice.evidence.grounds import Grounds, total
from sglang_instrument.analysis.advice.evidence.lever import ProposedChange, lever
from sglang_instrument.analysis.advice.evidence.names import NAMES, NamedSetting

_SLOW_KERNELS: Final = frozenset({"torch_native"})
_FEWEST_ACCEPTED: Final = 1.3  # tokens a verification; below it, verifying costs more than it saves
_LEAST_QUEUE: Final = 0.1  # of the calls' time
_LEAST_CACHED: Final = 0.5  # of the prompts of later turns
_OF_RANKS: Final = "load_balance_method"
_UNEVEN: Final = 1.5  # times the mean load


@lever("speculation", "named", "speculation")
def speculation(grounds: Grounds) -> Iterator[ProposedChange]:
    """Yield speculation off, where few drafted tokens are right."""
    turns = grounds.loop.lanes.paths.of_workers.filter(~pl.col("validate")).turns
    verified = turns.filter((pl.col("verifications") > 0) & (pl.col("response_tokens") > 0))
    if verified.is_empty():
        return
    accepted = total(verified["response_tokens"]) / total(verified["verifications"])
    if accepted >= _FEWEST_ACCEPTED:
        return
    setting = grounds.setting("speculation")
    yield ProposedChange(
        setting.name,
        setting.value,
        "off",
        costs="nothing at this rate of acceptance",
        rests_on=f"{accepted:.2f} tokens a verification, the one that the model writes itself included",
        command="lengths LOGS --speculation",
        costs_sec=_decoding_sec(grounds),
        not_recorded=setting.not_recorded,
    )


@lever("attention backend", "named")
def attention_backend(grounds: Grounds) -> Iterator[ProposedChange]:
    """Yield another backend, where a GPU runs the one for machines without a GPU."""
    setting = grounds.setting("attention backend")
    device = next((known.value for known in grounds.settings if known.name == "device"), None)
    if setting.value not in _SLOW_KERNELS or device != "cuda":
        return
    yield ProposedChange(
        setting.name,
        setting.value,
        "fa3, flashinfer or triton, as the GPU allows",
        costs="nothing, where the backend supports the model",
        rests_on="torch_native has no fused kernel for paged attention",
        command="trace TRACES",
        costs_sec=_decoding_sec(grounds),
    )


@lever("schedule policy", "named", "cache-lost")
def schedule_policy(grounds: Grounds) -> Iterator[ProposedChange]:
    """Yield longest prefixes first, where requests queue and later turns lose their prefixes."""
    setting = grounds.setting("schedule policy")
    later = grounds.calls.filter(pl.col("turn") > 0).drop_nulls(["prompt_tokens", "cached_tokens"])
    if setting.value != "fcfs" or grounds.queued_share < _LEAST_QUEUE or later.is_empty():
        return
    cached = total(later["cached_tokens"]) / max(1.0, total(later["prompt_tokens"]))
    if cached >= _LEAST_CACHED:
        return
    known = grounds.calls.drop_nulls(["prefill_sec", "call_sec"])
    share = total(known["prefill_sec"]) / max(1e-9, total(known["call_sec"]))
    yield ProposedChange(
        setting.name,
        setting.value,
        "lpm",
        costs="requests without a cached prefix wait longer",
        rests_on=(
            f"{100 * cached:.0f} % of the later turns' prompts were cached; "
            f"prefill takes {100 * share:.0f} % of the calls"
        ),
        command="servers LOGS",
        costs_sec=share * (grounds.mean["rollout_sec"] or 0.0),
        not_recorded=setting.not_recorded,
    )


@lever("router policy", "named", "uneven-servers", "servers-in-turn", "conversations-moved")
def router_policy(grounds: Grounds) -> Iterator[ProposedChange]:
    """Yield a router's policy by load, where requests queue at one server while another is half empty.

    A server that is there and gets no call of the rollout is empty.
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
    by_server = named.group_by("server").agg(
        load=running.sum(), queue=pl.col("queue_sec").sum() / pl.col("call_sec").sum()
    )
    busiest = by_server.sort("load").row(-1, named=True)
    mean: Any = by_server["load"].mean()
    if busiest["load"] < _UNEVEN * mean or busiest["queue"] < _LEAST_QUEUE:
        return
    setting = grounds.setting("router")
    if setting.name.endswith(_OF_RANKS) and not any(" " in name for name in by_server["server"]):
        setting = NamedSetting(NAMES["router"].usual, None, "")  # SGLang's own is between ranks of one server
    yield ProposedChange(
        setting.name,
        setting.value,
        "by load, such as least_load or cache_aware",
        costs="later turns may lose their cached prefix",
        rests_on=f"{busiest['server']} has {busiest['load'] / mean:.1f} times the mean load; its calls queue",
        command="servers LOGS",
        costs_sec=busiest["queue"] * (grounds.mean["rollout_sec"] or 0.0),
        not_recorded=setting.not_recorded,
    )


def _decoding_sec(grounds: Grounds) -> float:
    """Return the seconds of a step in which the rollout works."""
    return grounds.mean["rollout_sec"] or 0.0
