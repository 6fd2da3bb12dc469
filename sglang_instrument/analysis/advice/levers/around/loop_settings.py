"""Name settings of the loop that cost time and cannot be simulated: weight sync, the staleness bound."""

from collections.abc import Iterator
from typing import Final

from sglang_instrument.analysis.advice.evidence.grounds import Grounds
from sglang_instrument.analysis.advice.evidence.lever import ProposedChange, lever

_LEAST: Final = 0.1  # of the step


@lever("weight sync", "named", "weights", "slow-update", "aborting-update")
def weight_sync(grounds: Grounds) -> Iterator[ProposedChange]:
    """Yield how weights are sent, where that takes a tenth of the step."""
    sec = grounds.mean["weights_sec"]
    if not sec or sec < _LEAST * grounds.step_sec:
        return
    setting = grounds.setting("weight sync")
    yield ProposedChange(
        setting.name,
        setting.value,
        "larger buckets, or changed weights alone",
        costs="memory for the buckets",
        rests_on="transfer, drain and pause of each update, as logged",
        command="weights LOGS",
        costs_sec=sec,
        not_recorded=setting.not_recorded,
    )


@lever("staleness bound", "named", "rollout-waits", "staleness-bound")
def staleness_bound(grounds: Grounds) -> Iterator[ProposedChange]:
    """Yield the staleness bound, where an asynchronous rollout waits for the trainer at it."""
    sec = grounds.mean["rollout_waits_sec"]
    if grounds.playback.shape != "asynchronous" or not sec or sec < _LEAST * grounds.step_sec:
        return
    setting = grounds.setting("staleness")
    yield ProposedChange(
        setting.name,
        setting.value,
        "a higher bound, or fewer servers",
        costs="samples are made by older weights; the trainer is the slower side, and no step gets shorter",
        rests_on="the rollout stands still until the trainer has taken samples",
        command="staleness LOGS",
        costs_sec=sec,
        not_recorded=setting.not_recorded,
    )
