"""Find the knee of a curve of caps: behind it, each second saved costs more responses."""

from collections.abc import Iterator, Sequence
from typing import Final

from sglang_instrument.analysis.advice.evidence.curves import CapPoint
from sglang_instrument.analysis.advice.evidence.grounds import Grounds
from sglang_instrument.analysis.advice.evidence.lever import ProposedChange

#: The most responses that a proposed cap may cut.
MOST_CUT: Final = 0.05


def knee_of(points: Sequence[CapPoint], most_cut: float = MOST_CUT) -> CapPoint | None:
    """Return the point that is farthest above the straight line from no cap to the lowest cap allowed.

    Source: the knee of Satopaa et al., "Finding a kneedle in a haystack" (2011), of a curve that rises.

    Args:
        points: Of a curve.
        most_cut: Only caps that cut at most this share of the responses.

    Returns:
        The point; None if no such cap saves anything.
    """
    allowed = [point for point in points if point.cut_share <= most_cut and point.saves_sec > 0]
    if not allowed:
        return None
    most_sec = max(point.saves_sec for point in allowed)
    widest = max(point.cut_share for point in allowed) or 1.0
    return max(allowed, key=lambda point: point.saves_sec / most_sec - point.cut_share / widest)


def caps_at_knee(
    grounds: Grounds, points: Sequence[CapPoint], name: str, replayed: str, command: str
) -> Iterator[ProposedChange]:
    """Yield the cap at the knee of a curve; none where no cap saves anything.

    Args:
        grounds: What the run tells.
        points: Of the curve.
        name: Of the setting.
        replayed: What the requests were replayed under: "each of the caps".
        command: Which shows the curve.
    """
    point = knee_of(points)
    if point is None:
        return
    setting = grounds.setting(name)
    yield ProposedChange(
        setting.name,
        setting.value,
        point.cap,
        costs=point.costs(),
        rests_on=f"a replay of {grounds.playback.requests:,} requests under {replayed}",
        command=command,
        change=point.change,
        per_step=point.per_step,
        not_recorded=setting.not_recorded,
    )
