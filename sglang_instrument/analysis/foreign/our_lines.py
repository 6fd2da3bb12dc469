"""Write rows of a foreign log as our own log has them: as lines, or the fields of each as text."""

from pathlib import Path
from typing import Any, Final

import msgspec
import polars as pl

from sglang_instrument.analysis.reading.columns import COLUMNS

_IN_EXTRA: Final = ("request_id", "turn", "turns", "finish_reason", "reward", "tool")
_AT_ONCE: Final = 50_000  # rows whose fields are Python's objects: bounds the memory


def write_lines(path: Path, rows: pl.DataFrame) -> None:
    """Write rows, in the order of their ends, into a new file."""
    stamp = pl.from_epoch("end_us", time_unit="us").dt.strftime("%Y-%m-%dT%H:%M:%S%.6f+00:00")
    lines = rows.sort("end_us", maintain_order=True).select(
        timestamp=stamp,
        event=pl.col("event").cast(pl.String),
        # The reader rounds ends down: without a nanosecond more, many would be a microsecond early.
        duration_sec=pl.col("duration_sec") + 1e-9,
        extra=_fields(rows),
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


def extra_texts(rows: pl.DataFrame) -> pl.Series:
    """Return what `extra` of each row is, as JSON; null where it has no fields."""
    encode = msgspec.json.Encoder().encode
    texts: list[str | None] = []
    for some in rows.select(_fields(rows)).to_series().struct.unnest().iter_slices(_AT_ONCE):
        fields = map(_filled, some.to_dicts())
        texts += [encode(filled).decode() if filled else None for filled in fields]
    return pl.Series("extra", texts, dtype=pl.String)


def _fields(rows: pl.DataFrame) -> pl.Expr:
    others = [name for name in rows.columns if name not in COLUMNS]
    in_extra = [name for name in _IN_EXTRA if name in rows.columns]
    return pl.struct(*in_extra, *others, actual_response_tokens="response_tokens")


def _filled(row: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in row.items() if value is not None}


def _without_nulls(row: dict[str, Any]) -> dict[str, Any]:
    filled = _filled(row)
    extra = filled.get("extra")
    if isinstance(extra, dict):
        filled["extra"] = _filled(extra)
    return filled
