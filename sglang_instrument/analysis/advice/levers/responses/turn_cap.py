"""Propose a cap on the turns of a request: the knee of what caps save against what they cut."""

from collections.abc import Iterator

from sglang_instrument.analysis.advice.evidence.curves import turn_curve
from sglang_instrument.analysis.advice.evidence.grounds import Grounds
from sglang_instrument.analysis.advice.evidence.knee import knee_of
from sglang_instrument.analysis.advice.evidence.lever import ProposedChange, lever


@lever("turn cap", "simulated", model_error=0.4)
def turn_cap(grounds: Grounds) -> Iterator[ProposedChange]:
    """Yield the cap at the knee of the curve, among those that cut at most one request in twenty."""
    point = knee_of(turn_curve(grounds.playback, grounds.requests))
    if point is None:
        return
    setting = grounds.setting("turn cap")
    yield ProposedChange(
        setting.name,
        setting.value,
        point.cap,
        costs=point.costs(),
        rests_on=f"a replay of {grounds.playback.requests:,} requests under each number of turns",
        command="lengths LOGS --caps turns",
        change=point.change,
        per_step=point.per_step,
        not_recorded=setting.not_recorded,
    )
