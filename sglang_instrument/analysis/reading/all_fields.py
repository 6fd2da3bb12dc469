"""Keep all that a line holds: beside the typed columns `extra` as text, and keys that have no column."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import orjson
import polars as pl

from sglang_instrument.analysis.reading.columns import Columns
from sglang_instrument.analysis.reading.folders import Place
from sglang_instrument.analysis.reading.records.decoding import loaded
from sglang_instrument.analysis.reading.records.lines import NO_EXTRA, Line, WholeLine
from sglang_instrument.analysis.reading.records.unfit import UnfitFields

#: Columns of text. `extra` is JSON, as it stands in the log; only what is not JSON (NaN, lone surrogates) is
#: null or replaced. `other_keys` is a JSON object of the line's keys without a column, and of those whose
#: values have another type than their column; null if there are none.
TEXT_COLUMNS: Final[dict[str, Any]] = {"extra": pl.String, "other_keys": pl.String}


#: The timestamp of a record as it stands in the log: `stamp`, or where that is null the microseconds of its
#: end in UTC, and `late_us` after it; null says 0.
STAMPS: Final[dict[str, Any]] = {"stamp": pl.String, "late_us": pl.Int64}
_UTC: Final = "%Y-%m-%dT%H:%M:%S%.6f+00:00"
_UTC_LENGTH: Final = len("2026-01-05T08:00:01.500000+00:00")


class WholeColumns(Columns):
    """The columns of a table, `TEXT_COLUMNS` and `STAMPS`."""

    def __init__(self) -> None:
        super().__init__()
        self._texts: list[str | None] = []
        self._others: list[str | None] = []
        self._stamps: list[str] = []

    def add(
        self,
        lines: Sequence[Line],
        source: int,
        all_ids: bool = False,
        unfit: UnfitFields | None = None,
    ) -> None:
        """Add lines of one source, which are `WholeLine`s."""
        super().add(lines, source, all_ids, unfit)
        self._texts += [text_of(line) for line in lines]
        self._others += [line.others for line in lines if isinstance(line, WholeLine)]
        self._stamps += [line.timestamp for line in lines]

    def table(self, places: Sequence[Place], position: int) -> pl.DataFrame:
        """Return the columns as `Columns.table` does, and those of the text."""
        texts = (pl.Series("extra", self._texts), pl.Series("other_keys", self._others))
        table = super().table(places, position)
        stamps = pl.Series("stamp", self._stamps, dtype=pl.String)
        return table.with_columns(*(text.cast(pl.String) for text in texts), stamps).with_columns(_stamps())


def _stamps() -> list[pl.Expr]:
    stamp = pl.col("stamp")
    usual = (stamp.str.len_bytes() == _UTC_LENGTH) & stamp.str.ends_with("+00:00")
    time_us = stamp.str.to_datetime(_UTC, time_unit="us", strict=False).dt.epoch("us")
    late_us = pl.when(usual).then(time_us - pl.col("end_us"))
    return [
        pl.when(late_us.is_null()).then(stamp).alias("stamp"),
        pl.when(late_us != 0).then(late_us).alias("late_us"),
    ]


def timestamps() -> pl.Expr:
    """Return the timestamps of records with `STAMPS`, as they stand in the log."""
    time_us = pl.col("end_us") + pl.col("late_us").fill_null(0)
    return pl.coalesce("stamp", pl.from_epoch(time_us, "us").dt.strftime(_UTC)).alias("timestamp")


def text_of(line: Line) -> str | None:
    """Return `extra` of a line as text; None if it has none."""
    text = bytes(line.extra)
    return None if text == bytes(NO_EXTRA) else text.decode("utf-8", "replace")


def fields_of(
    extra: str | None, other_keys: str | None, not_finite: Callable[[str], Any] = lambda digits: None
) -> dict[str, Any]:
    """Return the fields of a record by name; where both have one, that of `extra`.

    Args:
        extra: As JSON.
        other_keys: As JSON.
        not_finite: As for `loaded`.
    """
    fields: dict[str, Any] = {}
    for text in filter(None, (other_keys, extra)):
        try:
            value = orjson.loads(text)
        except orjson.JSONDecodeError:  # a number or a depth that only json.loads takes
            value = loaded(text.encode(), not_finite)
        fields |= value if isinstance(value, dict) else {}
    return fields


def field_columns(extra: pl.Series) -> pl.DataFrame:
    """Return a column for each field in texts that our own reader of foreign logs wrote."""
    fields = extra.str.json_decode(infer_schema_length=None)
    return fields.struct.unnest() if isinstance(fields.dtype, pl.Struct) else pl.DataFrame()


def with_texts(records: pl.DataFrame) -> pl.DataFrame:
    """Return records with `TEXT_COLUMNS`: null where they were read without, as those of foreign logs are."""
    missing = {name: kind for name, kind in TEXT_COLUMNS.items() if name not in records.columns}
    return records.with_columns(pl.lit(None, kind).alias(name) for name, kind in missing.items())
