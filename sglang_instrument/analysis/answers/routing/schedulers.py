"""Sum up what each scheduler held and did: its gauges, the tiers of its cache, and what it took back."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

import polars as pl

from sglang_instrument.analysis.answers.engine.join import has_engine_logs, with_step
from sglang_instrument.analysis.answers.engine.records import engine_files
from sglang_instrument.analysis.answers.engine.requests import called_requests
from sglang_instrument.analysis.answers.routing.forward_passes import busy_table
from sglang_instrument.analysis.answers.routing.gauges import gauge_table
from sglang_instrument.analysis.reading.records.engine_fields import EngineFields, rids_of
from sglang_instrument.analysis.run.newest_records import newest_records
from sglang_instrument.schema import SCHEDULER_PREEMPT
from sglang_instrument.sparkline import sparkline

if TYPE_CHECKING:
    from sglang_instrument.analysis.run.opening import Run

_SECOND_US: Final = 1_000_000
#: What the course of a column of `gauge_table` is called in a row.
COURSES: Final = {
    "running_over_time": "running",
    "waiting_over_time": "waiting",
    "kv_cache_over_time": "kv_cache_used_share",
}
#: Columns of `gauge_table` of which the mean and the largest value are given.
_OVER_TIME: Final = ("running", "waiting", "kv_cache_used_share")
_SCHEMA: Final[dict[str, Any]] = {
    "scheduler": pl.String,
    "seconds": pl.Int64,
    **{f"{name}_mean": pl.Float64 for name in _OVER_TIME},
    **dict.fromkeys(("running_max", "waiting_max"), pl.Int64),
    "kv_cache_used_share_max": pl.Float64,
    **dict.fromkeys(("requests", "prompt_tokens", "cached_tokens"), pl.Int64),
    **dict.fromkeys(("cached_host_tokens", "cached_storage_tokens"), pl.Int64),
    **dict.fromkeys(("retractions", "retracted_tokens", "preemptions", "aborts"), pl.Int64),
    "forward_passes": pl.Int64,
    **dict.fromkeys(("forward_sec", "forward_share"), pl.Float64),
}


def scheduler_table(run: Run, chosen: pl.Expr | None = None) -> pl.DataFrame:
    """Return one row per scheduler, in the order of names; a data-parallel rank is a scheduler of its own.

    Args:
        run: The run.
        chosen: A filter by step and validate; None: everything.

    Returns:
        scheduler; seconds: those with a gauge; running_mean, running_max, waiting_mean, waiting_max:
        requests; kv_cache_used_share_mean, kv_cache_used_share_max; requests that it ran; prompt_tokens, of
        which cached_tokens were in the cache: of them cached_host_tokens in the host's memory,
        cached_storage_tokens in a store beyond it; retractions, after which retracted_tokens were computed
        again; preemptions; aborts: requests that ended so; the columns of `forward_passes.busy_table`. Null
        where it was not logged.
    """
    rows = _gauged(chosen_gauges(run, chosen))
    if has_engine_logs(run):
        # An engine inside a worker logs in the worker's file what was in the cache.
        requests = with_step(called_requests(run).drop_nulls("scheduler"), run)
        requests = requests if chosen is None else requests.filter(chosen)
        rows = rows.join(_counted(requests), on="scheduler", how="full", coalesce=True)
        rows = rows.join(_preemptions(run, requests), on="scheduler", how="left")
        rows = rows.join(busy_table(run, chosen), on="scheduler", how="full", coalesce=True)
    lacking = [pl.lit(None, kind).alias(name) for name, kind in _SCHEMA.items() if name not in rows.columns]
    columns = [pl.col(name).cast(kind) for name, kind in _SCHEMA.items()]
    return rows.with_columns(lacking).select(columns).sort("scheduler")


def chosen_gauges(run: Run, chosen: pl.Expr | None = None) -> pl.DataFrame:
    """Return the rows of `gauge_table` in the time of the chosen steps.

    Args:
        run: The run.
        chosen: A filter by step and validate. A second before the first step is in none, and no validation.
    """
    gauges = gauge_table(run)
    if chosen is None or gauges.is_empty():
        return gauges
    placed = with_step(gauges.with_columns(start_us="at_us"), run)
    return placed.with_columns(pl.col("validate").fill_null(False)).filter(chosen).select(gauges.columns)


def courses(gauges: pl.DataFrame, column: str, slices: int) -> dict[str, str]:
    """Return the means of a column in equal slices of the time, as a sparkline for each scheduler.

    The highest bar is the highest mean of any scheduler; a slice without a gauge is a space. There are at
    most `slices`, and none is shorter than a second.
    """
    known = gauges.drop_nulls(column)
    if known.is_empty():
        return {}
    first: Any = known["at_us"].min()
    last: Any = known["at_us"].max()
    slices = max(1, min(slices, (last - first) // _SECOND_US))
    width = -(-(last - first + 1) // slices)
    means = known.group_by("scheduler", number=(pl.col("at_us") - first) // width).agg(pl.col(column).mean())
    top: Any = means[column].max()
    lines: dict[str, list[float]] = {}
    for scheduler, number, mean in means.iter_rows():
        lines.setdefault(scheduler, [0.0] * slices)[number] = float(mean)
    return {scheduler: sparkline(values, float(top)) for scheduler, values in lines.items()}


def scheduler_rows(run: Run, chosen: pl.Expr | None, slices: int) -> list[dict[str, Any]]:
    """Return the rows of `scheduler_table` with the course of each gauge; [] where none was logged."""
    gauges = chosen_gauges(run, chosen)
    if gauges.is_empty():
        return []
    drawn = {title: courses(gauges, column, slices) for title, column in COURSES.items()}
    return [
        {**row, **{title: lines.get(row["scheduler"], "") for title, lines in drawn.items()}}
        for row in scheduler_table(run, chosen).to_dicts()
    ]


def _gauged(gauges: pl.DataFrame) -> pl.DataFrame:
    return gauges.group_by("scheduler").agg(
        seconds=pl.len().cast(pl.Int64),
        **{f"{name}_mean": pl.col(name).cast(pl.Float64).mean() for name in _OVER_TIME},
        **{f"{name}_max": pl.col(name).max() for name in _OVER_TIME},
    )


def _counted(requests: pl.DataFrame) -> pl.DataFrame:
    sums = (
        *("prompt_tokens", "cached_tokens", "cached_host_tokens", "cached_storage_tokens"),
        *("retractions", "retracted_tokens"),
    )
    return requests.group_by("scheduler").agg(
        requests=pl.len().cast(pl.Int64),
        **{name: pl.when(pl.col(name).count() > 0).then(pl.col(name).sum()) for name in sums},
        aborts=pl.when(pl.col("finish_reason").count() > 0).then(
            (pl.col("finish_reason") == "abort").sum().cast(pl.Int64)
        ),
    )


def _preemptions(run: Run, requests: pl.DataFrame) -> pl.DataFrame:
    """Return how often each scheduler took the place of one of these requests away."""
    known = requests.select("rid", "scheduler")
    rids = _preempted(run)
    counts = pl.DataFrame({"rid": rids}, schema={"rid": pl.String}).join(known, on="rid", how="inner")
    return counts.group_by("scheduler").agg(preemptions=pl.len().cast(pl.Int64))


def _preempted(run: Run) -> list[str]:
    records = newest_records(run, engine_files(run), EngineFields, events=(SCHEDULER_PREEMPT,))
    return [rid for _, _, fields in records for rid in rids_of(fields)]
