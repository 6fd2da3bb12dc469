"""Name the size of the key-value cache, where requests queue although more of them might run."""

from collections.abc import Iterator
from typing import Final

from sglang_instrument.analysis.advice.evidence.grounds import Grounds
from sglang_instrument.analysis.advice.evidence.lever import ProposedChange, lever

_FULL: Final = 0.7  # of the cache, held by running requests while others wait
_LEAST_QUEUE: Final = 0.1  # of the calls' time
_NEAR: Final = 0.8  # of the running limit: then that limit lets requests wait
_RETAINED: Final = "less memory for a trainer that shares the GPU"


@lever("key-value cache", "named", "retraction", "queue", "engine", "slow-calls", "slow-call")
def kv_cache(grounds: Grounds) -> Iterator[ProposedChange]:
    """Yield a larger memory fraction, or more tokens where their number is set.

    SGLang keeps room for what running requests may still write, so that others queue long before it is full.
    """
    limit, share = grounds.playback.served.limit, grounds.full_share()
    running = grounds.setting("running limit").value
    if limit is None or grounds.differs_by_server("running limit") or grounds.queued_share < _LEAST_QUEUE:
        return
    if isinstance(running, int):
        if limit >= _NEAR * running:
            return
    elif share is None or share < _FULL:
        return
    tokens, fraction = grounds.setting("KV tokens"), grounds.setting("memory")
    setting = tokens if tokens.value is not None else fraction
    filled = "" if share is None else f"; running ones hold {100 * share:.0f} % of the cache meanwhile"
    yield ProposedChange(
        setting.name,
        setting.value,
        "more room, a lower schedule_conservativeness, or a lower response cap",
        costs=_RETAINED,
        rests_on=(
            f"requests queue for {100 * grounds.queued_share:.0f} % of their calls' time while a server runs "
            f"{limit}{filled}"
        ),
        command="servers LOGS --over-time",
        costs_sec=grounds.queued_share * (grounds.mean["rollout_sec"] or 0.0),
        not_recorded=setting.not_recorded,
    )
