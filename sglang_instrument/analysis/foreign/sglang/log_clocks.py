"""Put the lines of a server in the order in which they were printed, even if its clock was set back."""

from collections.abc import Sequence
from typing import Final

import polars as pl

_JITTER_US: Final = 2_000_000  # lines of several processes may be printed in another order


def forward(table: pl.DataFrame) -> tuple[pl.DataFrame, int]:
    """Return lines with times that only go forward within each worker, and how often a clock was set back.

    Args:
        table: `worker` and `stamp`, in the order of the files.
    """
    times = 0
    moved: list[pl.DataFrame] = []
    for of_worker in table.with_row_index("row").partition_by("worker", maintain_order=True):
        stamps, set_back = _forward(of_worker["stamp"].to_list())
        times += set_back
        moved.append(of_worker.with_columns(stamp=pl.Series(stamps, dtype=pl.Int64)))
    if not times:
        return table, 0
    return pl.concat(moved).sort("row").drop("row"), times


def _forward(stamps: Sequence[int]) -> tuple[list[int], int]:
    """Return times that go forward: where a clock was set back, the time goes on from there."""
    shift = times = 0
    highest = stamps[0] if stamps else 0
    forward: list[int] = []
    for number, stamp in enumerate(stamps):
        following = stamps[number + 1] if number + 1 < len(stamps) else highest
        # A single early line is one that was printed late.
        if max(stamp, following) + shift < highest - _JITTER_US:
            shift = highest - stamp
            times += 1
        forward.append(stamp + shift)
        highest = max(highest, stamp + shift)
    return forward, times
