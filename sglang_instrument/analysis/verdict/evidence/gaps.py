"""Measure the time between steps: the gaps, how they grow, and what is left without the growth."""

from typing import Final, NamedTuple

import polars as pl

from sglang_instrument.analysis.ledger.deciding_paths import Paths
from sglang_instrument.analysis.ledger.ledger import STEP, trained_meanwhile
from sglang_instrument.analysis.verdict.evidence.effects import Trend, find_trend, floor_of, without_trend

_OVERLAP: Final = 0.05  # of a step: a shorter overlap is none
_MOST: Final = 0.5  # of the steps


class Gaps(NamedTuple):
    """The gaps after the steps of a run.

    Attributes:
        rows: The steps with `sec`, the time until the next one.
        trend: How the gaps grow; None if they do not.
        flat: The rows with `shared`, the logarithm of `sec + floor_sec`, without the trend: as
            `effects.without_trend` returns them.
        floor_sec: `effects.floor_of`.
    """

    rows: pl.DataFrame
    trend: Trend | None
    flat: pl.DataFrame
    floor_sec: float


def gaps_of(paths: Paths) -> Gaps:
    """Return the gaps between steps that are long enough to count."""
    sec = (pl.col("next_us") - pl.col("done_us")) / 1e6
    rows = paths.windows.with_columns(sec=sec).filter(pl.col("sec") > _least(paths))
    floor_sec = floor_of(paths.windows)
    shared = rows.with_columns(shared=(pl.col("sec") + floor_sec).log())
    trend = find_trend(shared)
    return Gaps(rows, trend, without_trend(shared, trend), floor_sec)


def _least(paths: Paths) -> float:
    """Return the shortest gap that counts.

    Where rollout and training overlap in most steps, one waits for the other, and short gaps come and go by
    chance.
    """
    took = (pl.col("done_us") - pl.col("begin_us")) / 1e6
    trained = trained_meanwhile(paths).rename({"sec": "trained_sec"})
    steps = paths.windows.join(trained, on=STEP, how="left")
    both = pl.col("overlap_sec") + pl.col("trained_sec").fill_null(0.0)
    middle, share = steps.select(took.median(), overlap=(both > _OVERLAP * took).mean()).row(0)
    return float(middle) if share > _MOST else 0.0
