"""Show how often each event happened, how long it took, its share of the time; the same path by path."""

from typing import Final

import polars as pl

from sglang_instrument.analysis.run.cached_tables import cached_table
from sglang_instrument.analysis.run.opening import Run

_OF_STEP: Final = ["role", "step", "validate", "worker"]
_PATHS: Final = {
    "step": pl.Int64,
    "validate": pl.Boolean,
    "worker": pl.Int64,
    "path": pl.String,
    "phase": pl.String,
    "count": pl.Int64,
    "total_sec": pl.Float64,
    "without_nested_sec": pl.Float64,
    "steps_sec": pl.Float64,
}


def event_table(spans: pl.DataFrame, instants: pl.DataFrame | None = None) -> pl.DataFrame:
    """Return one row per event, the largest share first.

    Args:
        spans: Nested spans, as in `Run.spans`, of the steps and workers to count.
        instants: Records without a duration, to be counted as well.

    Returns:
        `event`, `phase`, `count`; `total_sec`: sum of the durations, in which nested and concurrent spans
        count several times; `without_nested_sec`: the same without the time of child spans; `steps_share`:
        sum of `steps_sec` over that of all events, so that shares add up to 1; `p50_sec`, `p99_sec` and
        `max_sec` of the durations, interpolated linearly. Instant events have null there.
    """
    duration = pl.col("duration_sec")
    whole = spans["steps_sec"].sum()
    table = spans.group_by(pl.col("event").cast(pl.String), pl.col("phase").cast(pl.String)).agg(
        count=pl.len().cast(pl.Int64),
        total_sec=duration.sum(),
        without_nested_sec=pl.col("without_nested_sec").sum(),
        steps_share=pl.col("steps_sec").sum() / whole if whole else pl.lit(0.0),
        p50_sec=duration.quantile(0.5, "linear"),
        p99_sec=duration.quantile(0.99, "linear"),
        max_sec=duration.max(),
    )
    if instants is not None:
        counted = instants.filter(pl.col("duration_sec").is_null()).group_by(
            pl.col("event").cast(pl.String), pl.col("phase").cast(pl.String)
        )
        table = pl.concat([table, counted.agg(count=pl.len().cast(pl.Int64))], how="diagonal")
    return table.sort(
        "steps_share", "total_sec", "event", "phase", descending=[True, True, False, False], nulls_last=True
    )


def path_table(run: Run) -> pl.DataFrame:
    """Return one row per path of events of each step of a rollout worker.

    From the cache, unless the run's files changed.

    Returns:
        step, validate, worker; path: the events from the outermost span down, with `event_paths.SEPARATOR`
        between them; phase: what the spans count for; count: of the spans; total_sec: sum of their durations;
        without_nested_sec and steps_sec: sums of these, without those of nested spans. The `steps_sec` of a
        step of a worker add up to its duration.
    """
    steps = run.digest.of_workers().steps
    numbers = steps["step"].drop_nulls().unique().sort().to_list()
    files = run.files_of(numbers)
    if not files:
        return pl.DataFrame(schema=_PATHS)
    sums = cached_table(run, "event_paths", lambda: run.read_paths(numbers), files)
    of_steps = sums.join(steps.select(_OF_STEP).unique(), on=_OF_STEP, how="semi")
    return (
        of_steps.group_by("step", "validate", "worker", "path", maintain_order=True)
        .agg(pl.col("phase").first(), pl.col("count", "total_sec", "without_nested_sec", "steps_sec").sum())
        .select(*_PATHS)
        .sort("validate", "step", "worker", "path")
    )
