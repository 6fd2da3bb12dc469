"""Propose a cap on the tokens of a response: the knee of what caps save against what they cut."""

from collections.abc import Iterator

from sglang_instrument.analysis.advice.evidence.curves import token_curve
from sglang_instrument.analysis.advice.evidence.grounds import Grounds
from sglang_instrument.analysis.advice.evidence.knee import caps_at_knee
from sglang_instrument.analysis.advice.evidence.lever import ProposedChange, lever


@lever("response cap", "simulated", "long-replies", model_error=0.4)
def response_cap(grounds: Grounds) -> Iterator[ProposedChange]:
    """Yield the cap at the knee of the curve, among those that cut at most one response in twenty."""
    points = token_curve(grounds.playback, grounds.requests)
    yield from caps_at_knee(grounds, points, "response cap", "each of the caps", "lengths LOGS --caps")
