"""Write rows of a foreign log as lines of our own log, for answers that read lines."""

from pathlib import Path
from typing import Final

import msgspec
import polars as pl

from sglang_instrument.analysis.reading.columns import COLUMNS

_IN_EXTRA: Final = ("request_id", "turn", "turns", "finish_reason", "reward", "tool")


def write_lines(path: Path, rows: pl.DataFrame) -> None:
    """Write rows, in the order of their ends, into a new file."""
    fields = [name for name in rows.columns if name not in COLUMNS]
    extra = [*(name for name in _IN_EXTRA if name in rows.columns), *fields]
    stamp = pl.from_epoch("end_us", time_unit="us").dt.strftime("%Y-%m-%dT%H:%M:%S%.6f+00:00")
    lines = rows.sort("end_us", maintain_order=True).select(
        timestamp=stamp,
        event=pl.col("event").cast(pl.String),
        # The reader rounds ends down: without a nanosecond more, many would be a microsecond early.
        duration_sec=pl.col("duration_sec") + 1e-9,
        extra=pl.struct(*extra, actual_response_tokens="response_tokens"),
        workid="worker",
        step="step",
        start_us=pl.when(pl.col("duration_sec").is_not_null()).then("start_us"),
        **{name: pl.col(name) for name in ("task", "spawned_by", "active_sec", "device_sec")},
        error=pl.col("error").cast(pl.String),
        validate="validate",
        phase=pl.col("phase").cast(pl.String),
    )
    encoder = msgspec.json.Encoder()
    path.write_bytes(encoder.encode_lines([_without_nulls(row) for row in lines.to_dicts()]))


def _without_nulls(row: dict[str, object]) -> dict[str, object]:
    filled = {key: value for key, value in row.items() if value is not None}
    extra = filled.get("extra")
    if isinstance(extra, dict):
        filled["extra"] = {key: value for key, value in extra.items() if value is not None}
    return filled
