"""Measure the parts of steps outside of requests: preprocessing, sorting, building batches, broadcast, ..."""

from collections.abc import Iterator
from typing import Final, NamedTuple

import polars as pl

from sglang_instrument.analysis.verdict.evidence.effects import Effects, Limits, step_effects

PART_LIMITS: Final = Limits(times=1.5, spread=0.05)
_SHORTEST_SEC: Final = 1e-3  # what takes less is usual, however its times vary
_NAMES: Final = {
    "unaccounted": "time that no recorded part of {event} covers",
    "barrier": "barriers, without waiting for others,",
}


class StepPart(NamedTuple):
    """A part of the workers' steps.

    Attributes:
        phase: Its phase, or what is known of it: "unaccounted", "late start".
        event: Its event.
        rows: Its seconds, and their logarithm over the usual as `value`.
        effects: What it did over the steps.
    """

    phase: str
    event: str
    rows: pl.DataFrame
    effects: Effects

    @property
    def name(self) -> str:
        """What sentences call it."""
        return _NAMES.get(self.phase, "{event}").format(event=self.event)


def parts_that_vary(parts: pl.DataFrame, order: pl.DataFrame, least_sec: float) -> Iterator[StepPart]:
    """Yield the parts whose times differ by more than `least_sec`: of the others, none matters.

    Args:
        parts: `Evidence.parts`.
        order: The steps in the order of time.
        least_sec: The least difference in seconds.
    """
    spread = pl.col("sec").max() - pl.col("sec").min()
    varying = parts.filter(spread.over("part", "event") > least_sec)
    for (phase, event), rows in varying.group_by("part", "event", maintain_order=True):
        sec = pl.col("sec").clip(lower_bound=_SHORTEST_SEC)
        valued = rows.with_columns(value=(sec / sec.median()).log())
        yield StepPart(str(phase), str(event), valued, step_effects(valued, order, PART_LIMITS))
