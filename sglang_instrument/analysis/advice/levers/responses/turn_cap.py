"""Propose a cap on the turns of a request: the knee of what caps save against what they cut."""

from collections.abc import Iterator

from sglang_instrument.analysis.advice.evidence.curves import turn_curve
from sglang_instrument.analysis.advice.evidence.grounds import Grounds
from sglang_instrument.analysis.advice.evidence.knee import caps_at_knee
from sglang_instrument.analysis.advice.evidence.lever import ProposedChange, lever


@lever("turn cap", "simulated", model_error=0.4)
def turn_cap(grounds: Grounds) -> Iterator[ProposedChange]:
    """Yield the cap at the knee of the curve, among those that cut at most one request in twenty."""
    points = turn_curve(grounds.playback, grounds.requests)
    yield from caps_at_knee(grounds, points, "turn cap", "each number of turns", "lengths LOGS --caps turns")
