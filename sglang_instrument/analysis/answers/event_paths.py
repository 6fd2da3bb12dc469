"""Show where the time went event by event: the paths of events of each worker's steps, with their times."""

import polars as pl

from sglang_instrument.analysis.run.cache import cached_table
from sglang_instrument.analysis.run.opening import Run

_OF_STEP = ["role", "step", "validate", "worker"]


def path_table(run: Run) -> pl.DataFrame:
    """Return one row per path of events of each step of a rollout worker.

    From the cache, unless the run's files changed.

    Returns:
        step, validate, worker; path: the events from the outermost span down, with `event_paths.SEPARATOR`
        between them; phase: what the spans count for; count: of the spans; total_sec: sum of their durations;
        self_sec and wall_sec: sums of these, without those of nested spans. The wall times of a step of a
        worker add up to its duration.
    """
    steps = run.digest.of_workers().steps
    numbers = steps["step"].drop_nulls().unique().sort().to_list()
    files = run.files_of(numbers)

    def make() -> pl.DataFrame:
        return run.read_paths(numbers)

    sums = cached_table(run.folder, "event_paths", files, make) if run.cached else make()
    of_steps = sums.join(steps.select(_OF_STEP).unique(), on=_OF_STEP, how="semi")
    return (
        of_steps.group_by("step", "validate", "worker", "path", maintain_order=True)
        .agg(pl.col("phase").first(), pl.col("count", "total_sec", "self_sec", "wall_sec").sum())
        .sort("validate", "step", "worker", "path")
    )
