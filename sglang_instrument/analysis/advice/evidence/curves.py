"""Draw curves: what a cap on tokens, turns or time saves, and which responses it would cut."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any, Final

import polars as pl

from sglang_instrument.analysis.advice.evidence.change import Change
from sglang_instrument.analysis.advice.evidence.playback import Playback
from sglang_instrument.analysis.changes.replaying.rules import Rules

_SHARES: Final = (0.5, 0.6, 0.7, 0.8, 0.85, 0.9, 0.925, 0.95, 0.96, 0.97, 0.98, 0.985, 0.99, 0.995)
_MORE: Final = (0.05, 0.1, 0.15, 0.2, 0.25, 0.3, 0.4, 0.5)  # of the samples that a step needs
_ROUNDED_TO: Final = 10  # tokens


@dataclass(frozen=True)
class CapPoint:
    """A cap.

    Attributes:
        cap: It.
        change: What it changes.
        per_step: The seconds that each step saves.
        cut_share: The share of the responses that it ends early.
        rewards: The recorded rewards of those.
        other_reward: The mean recorded reward of all; None if no request has one.
    """

    cap: float
    change: Change
    per_step: list[float]
    cut_share: float
    rewards: list[float]
    other_reward: float | None

    @property
    def saves_sec(self) -> float:
        """Mean seconds that a step saves."""
        return mean(self.per_step) if self.per_step else 0.0

    def costs(self) -> str:
        """Return what it costs, in words."""
        cut = f"{100 * self.cut_share:.1f} % of the responses end early"
        if not self.rewards or self.other_reward is None:
            return cut
        return f"{cut}; their mean reward was {mean(self.rewards):.2f}, of all {self.other_reward:.2f}"


def token_curve(playback: Playback, requests: pl.DataFrame) -> list[CapPoint]:
    """Return what caps on the tokens of a response save, the highest cap first.

    Args:
        playback: Of the run.
        requests: Of its training steps.
    """
    tokens = requests["response_tokens"].drop_nulls()
    caps = {_rounded(tokens.quantile(share, "higher") or 0.0) for share in _SHARES} if len(tokens) else set()
    most = tokens.max() or 0
    caps = {cap for cap in caps if 0 < cap < most}  # type: ignore[operator]
    return _curve(playback, requests, ((cap, Change(Rules(max_tokens=cap))) for cap in _falling(caps)))


def turn_curve(playback: Playback, requests: pl.DataFrame) -> list[CapPoint]:
    """Return what caps on the turns of a request save, the highest cap first."""
    turns: Any = requests["turns"].drop_nulls().max() or 0
    caps = set(range(1, min(int(turns), 33)))
    return _curve(playback, requests, ((cap, Change(Rules(max_turns=cap))) for cap in _falling(caps)))


def time_curve(playback: Playback, requests: pl.DataFrame) -> list[CapPoint]:
    """Return what caps on the seconds of a request save, the highest cap first."""
    seconds = requests["duration_sec"].drop_nulls()
    caps = (
        {round(seconds.quantile(share, "higher") or 0.0, 1) for share in _SHARES} if len(seconds) else set()
    )
    changes = ((cap, Change(Rules(max_seconds=cap))) for cap in _falling(caps) if cap > 0)
    return _curve(playback, requests, changes)


def sample_curve(playback: Playback, requests: pl.DataFrame) -> list[CapPoint]:
    """Return what more samples than a step needs save, the smallest share first."""
    reward: Any = requests["reward"].mean()
    return [
        CapPoint(share, change, playback.saved(change), share / (1 + share), [], reward)
        for share in _MORE
        for change in (Change(more_requests=share),)
    ]


def _curve(
    playback: Playback, requests: pl.DataFrame, changes: Iterator[tuple[float, Change]]
) -> list[CapPoint]:
    reward: Any = requests["reward"].mean()
    return [
        CapPoint(cap, change, playback.saved(change), *playback.cut(change), reward)
        for cap, change in changes
    ]


def _falling(caps: set[Any]) -> Sequence[Any]:
    return sorted(caps, reverse=True)


def _rounded(tokens: float) -> int:
    return max(1, round(tokens / _ROUNDED_TO) * _ROUNDED_TO) if tokens >= _ROUNDED_TO else int(tokens)
