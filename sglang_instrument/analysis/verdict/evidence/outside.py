"""Measure the parts of steps outside of requests: preprocessing, sorting, building batches, broadcast, ..."""

import math
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import polars as pl

from sglang_instrument.analysis.verdict.evidence.effects import Effects, Limits, floor_of, step_effects

PART_LIMITS: Final = Limits(times=1.5, spread=0.05)
_NAMES: Final = {
    "unaccounted": "time that no recorded part of {event} covers",
    "barrier": "barriers, without waiting for others,",
}


class StepPart(NamedTuple):
    """A part of the workers' steps.

    Attributes:
        phase: Its phase, or what is known of it: "unaccounted", "late start".
        event: Its event.
        rows: Its seconds, and the logarithm of `sec + floor_sec` over that of the median as `value`.
        effects: What it did over the steps.
        floor_sec: `effects.floor_of`.
    """

    phase: str
    event: str
    rows: pl.DataFrame
    effects: Effects
    floor_sec: float

    @property
    def name(self) -> str:
        """What sentences call it."""
        return _NAMES.get(self.phase, "{event}").format(event=self.event)

    def sec_at(self, value: float) -> float:
        """Return the seconds that a value stands for."""
        middle: Any = self.rows["sec"].median()
        return max(0.0, (float(middle) + self.floor_sec) * math.exp(value) - self.floor_sec)


def parts_that_vary(parts: pl.DataFrame, order: pl.DataFrame, least_sec: float) -> Iterator[StepPart]:
    """Yield the parts whose times differ by more than `least_sec`: of the others, none matters.

    Args:
        parts: `Evidence.parts`.
        order: The steps in the order of time.
        least_sec: The least difference in seconds.
    """
    spread = pl.col("sec").max() - pl.col("sec").min()
    varying = parts.filter(spread.over("part", "event") > least_sec)
    floor_sec = floor_of(order)
    for (phase, event), rows in varying.group_by("part", "event", maintain_order=True):
        above = pl.col("sec") + floor_sec
        valued = rows.with_columns(value=(above / above.median()).log())
        effects = step_effects(valued, order, PART_LIMITS)
        yield StepPart(str(phase), str(event), valued, effects, floor_sec)
