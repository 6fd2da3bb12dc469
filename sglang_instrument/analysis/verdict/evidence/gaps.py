"""Measure the time between steps: the gaps, how they grow, and what is left without the growth."""

from typing import Final, NamedTuple

import polars as pl

from sglang_instrument.analysis.ledger.deciding_paths import Paths
from sglang_instrument.analysis.ledger.ledger import STEP, trained_meanwhile
from sglang_instrument.analysis.verdict.evidence.effects import Trend, find_trend, without_trend

_SHORTEST_SEC: Final = 0.1  # shorter gaps are as this one
_OVERLAP: Final = 0.05  # of a step: a shorter overlap is none
_MOST: Final = 0.5  # of the steps


class Gaps(NamedTuple):
    """The gaps after the steps of a run.

    Attributes:
        rows: The steps with `sec`, the time until the next one.
        trend: How the gaps grow; None if they do not.
        flat: The rows without the trend, as `effects.without_trend` returns them.
    """

    rows: pl.DataFrame
    trend: Trend | None
    flat: pl.DataFrame


def gaps_of(paths: Paths) -> Gaps:
    """Return the gaps between steps that are long enough to count."""
    sec = (pl.col("next_us") - pl.col("done_us")) / 1e6
    rows = paths.windows.with_columns(sec=sec).filter(pl.col("sec") > _least(paths))
    shared = rows.with_columns(shared=pl.col("sec").clip(lower_bound=_SHORTEST_SEC).log())
    trend = find_trend(shared)
    return Gaps(rows, trend, without_trend(shared, trend))


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
