"""Read how full each scheduler was, second by second, from the records of `scheduler_gauges`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import polars as pl

from sglang_instrument.analysis.answers.engine_requests import engine_files
from sglang_instrument.analysis.reading.records.engine_fields import EngineFields, count, kv_shares
from sglang_instrument.analysis.reading.times import epoch_us
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


class GaugeFields(EngineFields, gc=False, omit_defaults=True):
    """The fields of a gauge's record."""

    batch_size: Any = None


def gauge_table(run: Run) -> pl.DataFrame:
    """Return one row a second in which a scheduler ran batches, by scheduler and time.

    Args:
        run: The run.

    Returns:
        The columns of `SCHEMA`. at_us: Unix microseconds, on the clock of the scheduler's host;
        running, waiting: requests; batch_size: of the batch that began then; kv_cache_running_share: of the
        key-value cache what running requests hold; kv_cache_used_share: with what is kept for later prompts.
        Null where it was not logged.
    """
    rows = [] if run.is_dataset else list(_rows(run))
    return pl.DataFrame(rows, schema=SCHEMA, strict=False).sort("scheduler", "at_us", maintain_order=True)


def _rows(run: Run) -> Iterator[dict[str, Any]]:
    for file, line, fields in newest_records(run, engine_files(run), GaugeFields, events=(SCHEDULER_GAUGES,)):
        running_share, used_share = kv_shares(fields)
        yield {
            "scheduler": "" if file.place is None else file.place.stem,
            "at_us": epoch_us(line.timestamp) if line.start_us is None else line.end_us,
            "running": count(fields.running),
            "waiting": count(fields.waiting),
            "batch_size": count(fields.batch_size),
            "kv_cache_running_share": running_share,
            "kv_cache_used_share": used_share,
        }
