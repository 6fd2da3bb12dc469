"""Name settings of the engine that cost time and cannot be simulated: speculation, kernels, policies."""

from collections.abc import Iterator
from typing import Final

import polars as pl

from sglang_instrument.analysis.advice.evidence.grounds import Grounds, total
from sglang_instrument.analysis.advice.evidence.lever import ProposedChange, lever

_SLOW_KERNELS: Final = frozenset({"torch_native"})
_FEWEST_ACCEPTED: Final = 1.3  # tokens a verification; below it, verifying costs more than it saves
_LEAST_QUEUE: Final = 0.1  # of the calls' time
_LEAST_CACHED: Final = 0.5  # of the prompts of later turns


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


def _decoding_sec(grounds: Grounds) -> float:
    """Return the seconds of a step in which the rollout works."""
    return grounds.mean["rollout_sec"] or 0.0
