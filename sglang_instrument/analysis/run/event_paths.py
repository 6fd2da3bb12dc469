"""Sum spans up by their path: the events from the outermost span of a worker down to the span itself."""

from typing import Final

import polars as pl

from sglang_instrument.analysis.timing.group_ids import assign_group_ids
from sglang_instrument.analysis.timing.nesting import nest_and_clip
from sglang_instrument.analysis.timing.wall_time import split_wall_time

#: Between the events of a path: the unit separator of ASCII.
SEPARATOR: Final = "\x1f"
_OF_WORKER: Final = ("source", "role", "step", "validate", "worker")


def path_sums(records: pl.DataFrame) -> pl.DataFrame:
    """Return one row per path of each step of a worker.

    Returns:
        source, role, step, validate, worker; path: the events, with `SEPARATOR` between them; phase: what its
        spans count for; count: of its spans; total_sec: sum of their durations; without_nested_sec and
        steps_sec: sums of these, in which nested spans do not count.
    """
    spans = split_wall_time(*nest_and_clip(records))
    number, paths = _number_paths(spans)
    sums = spans.group_by(*_OF_WORKER, path=number, maintain_order=True).agg(
        phase=pl.col("counts_for").cast(pl.String).first(),
        count=pl.len().cast(pl.Int64),
        total_sec=pl.col("duration_sec").sum(),
        without_nested_sec=pl.col("without_nested_sec").sum(),
        steps_sec=pl.col("steps_sec").sum(),
    )
    return sums.with_columns(pl.col("role").cast(pl.String), path=paths.gather(sums["path"]))


def _number_paths(spans: pl.DataFrame) -> tuple[pl.Series, pl.Series]:
    """Return the number of each span's path, and the paths.

    Only the distinct paths become text: each round doubles the number of ancestors in the path of a span.
    """
    number, events = assign_group_ids(spans, ["event"])
    paths = events["event"].cast(pl.String).str.replace_all(SEPARATOR, " ", literal=True)
    up = spans["parent"]
    while up.null_count() < len(up):
        pairs = pl.DataFrame({"above": number.gather(up), "own": number})
        number, pairs = assign_group_ids(pairs, ["above", "own"])
        above = (paths.gather(pairs["above"]) + SEPARATOR).fill_null("")
        paths = above + paths.gather(pairs["own"])
        up = up.gather(up)
    return number, paths
