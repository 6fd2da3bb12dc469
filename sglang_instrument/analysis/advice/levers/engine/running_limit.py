"""Propose how many requests a server runs at once: more where they queue, fewer where they are retracted."""

from collections.abc import Iterator
from math import log2
from statistics import mean
from typing import Final

from sglang_instrument.analysis.advice.evidence.change import Change
from sglang_instrument.analysis.advice.evidence.grounds import Grounds
from sglang_instrument.analysis.advice.evidence.lever import ProposedChange, lever

_TIMES: Final = (1.25, 1.5, 2.0, 3.0, 4.0, 8.0)
_FULL: Final = 0.85  # of the cache: with more, no other limit would let more requests run
_ROOM: Final = 0.9  # of the cache that a proposal may fill
_ENOUGH: Final = 0.9  # of the most that any limit saves
_OF_DOUBLING: Final = 0.1  # of the saving: what a replay at twice the requests that ran is off


@lever(
    "running limit",
    "simulated",
    "queue",
    "engine",
    "slow-calls",
    "slow-call",
    "trainer-waits",
    model_error=0.08,
)
def running_limit(grounds: Grounds) -> Iterator[ProposedChange]:
    """Yield the smallest limit that saves nine tenths of what the best one saves, if the cache has room.

    How fast an engine is with more running requests than it had is extrapolated: with each doubling, the
    promise is less sure, as `benchmarks/real_settings.py` saw it.
    """
    if grounds.differs_by_server("running limit"):  # `unequal_servers` says it of the server
        return
    limit = grounds.playback.served.limit
    share = grounds.full_share()
    if limit is None or (share is not None and share > _FULL):
        return
    setting = grounds.setting("running limit")
    if isinstance(setting.value, int) and not isinstance(setting.value, bool):
        if limit < 0.8 * setting.value:  # something else limits them
            return
        limit = setting.value
    most = limit * (_ROOM / share if share else max(_TIMES))
    limits = [wanted for times in _TIMES if limit < (wanted := round(limit * times)) <= most]
    saved = [grounds.playback.saved(Change(limit=wanted)) for wanted in limits]
    if not saved or not all(saved):
        return
    best = max(map(mean, saved))
    place = next(number for number, each in enumerate(saved) if mean(each) >= _ENOUGH * best or best <= 0)
    yield ProposedChange(
        setting.name,
        setting.value if setting.value is not None else limit,
        limits[place],
        costs=_costs(share, limits[place] / limit),
        rests_on=(
            f"requests queue for {100 * grounds.queued_share:.0f} % of their calls' time; "
            "a replay with each limit"
        ),
        command="servers LOGS --over-time",
        change=Change(limit=limits[place]),
        per_step=saved[place],
        not_recorded=setting.not_recorded,
        model_error=_OF_DOUBLING * log2(limits[place] / limit),
    )


def _costs(share: float | None, times: float) -> str:
    if share is None:
        return "memory: how full the key-value cache is was not recorded; a full one retracts requests"
    after = min(1.0, share * times)
    return f"running requests fill {100 * after:.0f} % of the key-value cache in place of {100 * share:.0f} %"
