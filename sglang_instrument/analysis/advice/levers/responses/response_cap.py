"""Propose a cap on the tokens of a response: the knee of what caps save against what they cut."""

from collections.abc import Iterator

from sglang_instrument.analysis.advice.evidence.curves import token_curve
from sglang_instrument.analysis.advice.evidence.grounds import Grounds
from sglang_instrument.analysis.advice.evidence.knee import knee_of
from sglang_instrument.analysis.advice.evidence.lever import ProposedChange, lever


@lever("response cap", "simulated", "long-replies", model_error=0.4)
def response_cap(grounds: Grounds) -> Iterator[ProposedChange]:
    """Yield the cap at the knee of the curve, among those that cut at most one response in twenty."""
    point = knee_of(token_curve(grounds.playback, grounds.requests))
    if point is None:
        return
    setting = grounds.setting("response cap")
    yield ProposedChange(
        setting.name,
        setting.value,
        point.cap,
        costs=point.costs(),
        rests_on=f"a replay of {grounds.playback.requests:,} requests under each of the caps",
        command="lengths LOGS --caps",
        change=point.change,
        per_step=point.per_step,
        not_recorded=setting.not_recorded,
    )
