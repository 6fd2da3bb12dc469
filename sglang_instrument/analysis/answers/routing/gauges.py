"""Read how full each scheduler was, second by second, and what followers read of the GPUs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import polars as pl

from sglang_instrument.analysis.answers.engine.records import engine_files
from sglang_instrument.analysis.answers.engine.round_trips import ahead_us, hosts_ahead_us
from sglang_instrument.analysis.reading.records.engine_fields import EngineFields, count, kv_shares
from sglang_instrument.analysis.reading.records.gpu_records import gpu_rows
from sglang_instrument.analysis.reading.times import epoch_us
from sglang_instrument.analysis.run.cached_tables import cached_table
from sglang_instrument.analysis.run.losses import used_runs
from sglang_instrument.analysis.run.newest_records import newest_records
from sglang_instrument.schema import SCHEDULER_GAUGES

if TYPE_CHECKING:
    from sglang_instrument.analysis.run.opening import Run

#: Columns of `gauge_table`.
SCHEMA: dict[str, Any] = {
    "scheduler": pl.String,
    "at_us": pl.Int64,
    "running": pl.Int64,
    "waiting": pl.Int64,
    "batch_size": pl.Int64,
    "kv_cache_running_share": pl.Float64,
    "kv_cache_used_share": pl.Float64,
}


#: Columns of `gpu_table`.
GPU_SCHEMA: dict[str, Any] = {
    "host": pl.String,
    "gpu": pl.Int64,
    "name": pl.String,
    "at_us": pl.Int64,
    "busy_share": pl.Float64,
    "memory_used_bytes": pl.Int64,
    "memory_bytes": pl.Int64,
    "power_watts": pl.Float64,
    "sm_clock_mhz": pl.Int64,
    "memory_clock_mhz": pl.Int64,
    "clock_limits": pl.String,
}


class GaugeFields(EngineFields, gc=False, omit_defaults=True):
    """The fields of a gauge's record."""

    batch_size: Any = None


def gauge_table(run: Run) -> pl.DataFrame:
    """Return one row a second in which a scheduler ran batches, by scheduler and time.

    Args:
        run: The run.

    Returns:
        The columns of `SCHEMA`. at_us: Unix microseconds, on the clock of the median worker;
        running, waiting: requests; batch_size: of the batch that began then; kv_cache_running_share: of the
        key-value cache what running requests hold; kv_cache_used_share: with what is kept for later prompts.
        Null where it was not logged.
    """
    return pl.DataFrame(list(_rows(run)), schema=SCHEMA, strict=False).sort(
        "scheduler", "at_us", maintain_order=True
    )


def cached_gauges(run: Run) -> pl.DataFrame:
    """Return `gauge_table`, from the cache unless the run's files changed."""
    return cached_table(run, "gauges", lambda: gauge_table(run))


def gpu_table(run: Run) -> pl.DataFrame:
    """Return one row a second of a GPU, as followers of this run read them, by host, GPU and time.

    Returns:
        The columns of `GPU_SCHEMA`; null where the driver did not tell. at_us: Unix microseconds, on the
        clock of the median worker.
    """
    runs = {None, *run.files.members(used_runs(run.files))}
    ahead = hosts_ahead_us(run, ahead_us(run))
    rows = (row for row in gpu_rows(run.home) if row.run_id in runs)
    table = pl.DataFrame(
        [
            {
                **row._asdict(),
                "at_us": row.at_us - ahead.get(row.host, 0),
                "clock_limits": _words(row.clock_limits),
            }
            for row in rows
        ],
        schema=GPU_SCHEMA,
        strict=False,
    )
    return table.sort("host", "gpu", "at_us", maintain_order=True)


def _words(names: list[str] | None) -> str | None:
    return None if names is None else " ".join(names)


def _rows(run: Run) -> Iterator[dict[str, Any]]:
    ahead = ahead_us(run)
    for file, line, fields in newest_records(run, engine_files(run), GaugeFields, events=(SCHEDULER_GAUGES,)):
        running_share, used_share = kv_shares(fields)
        scheduler = "" if file.place is None else file.place.stem
        at_us = epoch_us(line.timestamp) if line.start_us is None else line.end_us
        yield {
            "scheduler": scheduler,
            "at_us": None if at_us is None else at_us - ahead.get(scheduler, 0),
            "running": count(fields.running),
            "waiting": count(fields.waiting),
            "batch_size": count(fields.batch_size),
            "kv_cache_running_share": running_share,
            "kv_cache_used_share": used_share,
        }
