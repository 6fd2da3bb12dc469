"""Propose another server for the rollout, where the trainer works beside it and waits for it."""

from collections.abc import Iterator
from typing import Final

from sglang_instrument.analysis.advice.evidence.change import Change
from sglang_instrument.analysis.advice.evidence.grounds import Grounds
from sglang_instrument.analysis.advice.evidence.lever import ProposedChange, lever
from sglang_instrument.analysis.advice.levers.engine.kv_cache import kv_cache

_LEAST_WAITING: Final = 0.1  # of the time, for which the trainer waits


@lever("servers", "simulated", "trainer-waits", model_error=0.1)
def servers(grounds: Grounds) -> Iterator[ProposedChange]:
    """Yield one server more, where both sides work at once and the rollout is the slower one.

    Where they take turns, more servers are money, no better setting: `loop --replicas` tells what they buy.
    Where caches lack room, a replay does not tell: it knows no retractions, and no waits for room.
    """
    playback = grounds.playback
    waits = grounds.mean["trainer_waits_share"]
    if playback.shape in (None, "synchronous") or waits is None or waits < _LEAST_WAITING:
        return
    if next(kv_cache.propose(grounds), None) is not None:
        return
    number, change = playback.served.servers, Change(servers=1)
    yield ProposedChange(
        "servers of the rollout",
        number,
        number + 1,
        costs="the GPUs of a server; taken from the trainer, they make training slower",
        rests_on=(f"the trainer waits in {100 * waits:.0f} % of the time; a replay with one server more"),
        command="loop LOGS --replicas +1",
        change=change,
        per_step=playback.saved(change),
    )
