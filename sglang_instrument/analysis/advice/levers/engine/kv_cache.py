"""Propose a larger key-value cache, where requests queue because the cache is full."""

from collections.abc import Iterator
from statistics import mean
from typing import Final

from sglang_instrument.analysis.advice.evidence.change import Change
from sglang_instrument.analysis.advice.evidence.grounds import Grounds
from sglang_instrument.analysis.advice.evidence.lever import ProposedChange, lever

_FULL: Final = 0.7  # of the cache, held by running requests while others wait
_MOST_FRACTION: Final = 0.9
_LEAST_MORE: Final = 1.02
_TIMES: Final = (1.25, 1.5, 2.0, 3.0, 4.0)


@lever("key-value cache", "simulated", "retraction", "queue", "engine", "slow-calls", "slow-call")
def kv_cache(grounds: Grounds) -> Iterator[ProposedChange]:
    """Yield a larger memory fraction, or more tokens where their number is set."""
    limit, share = grounds.playback.served.limit, grounds.full_share()
    if limit is None or share is None or share < _FULL:
        return
    running = grounds.setting("running limit").value
    if isinstance(running, int) and limit >= running:
        return
    tokens, fraction = grounds.setting("KV tokens"), grounds.setting("memory")
    if isinstance(tokens.value, int) and tokens.value > 0:
        changes = [(times, round(tokens.value * times)) for times in _TIMES]
        setting = tokens
    elif isinstance(fraction.value, float):
        times = _MOST_FRACTION / fraction.value
        changes = [(times, _MOST_FRACTION)] if times >= _LEAST_MORE else []  # type: ignore[list-item]
        setting = fraction
    else:
        changes, setting = [(_TIMES[0], None)], fraction  # type: ignore[list-item]
    saved = [
        grounds.playback.saved(Change(limit=max(limit + 1, round(limit * times)))) for times, _ in changes
    ]
    if not saved or not all(saved):
        return
    best = max(map(mean, saved))
    place = next(number for number, each in enumerate(saved) if mean(each) >= 0.9 * best or best <= 0)
    times, value = changes[place]
    yield ProposedChange(
        setting.name,
        setting.value,
        value if value is not None else f"room for {100 * (times - 1):.0f} % more tokens",
        costs=f"{100 * (times - 1):.0f} % more memory for the cache: less for a trainer that shares the GPU",
        rests_on=(
            f"running ones hold {100 * share:.0f} % of the cache while others wait; "
            f"a replay with {max(limit + 1, round(limit * times))} running requests in place of {limit}"
        ),
        command="servers LOGS --over-time",
        change=Change(limit=max(limit + 1, round(limit * times))),
        per_step=saved[place],
        not_recorded=setting.not_recorded,
    )
