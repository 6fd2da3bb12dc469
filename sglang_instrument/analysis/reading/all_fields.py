"""Keep all that a line holds: beside the typed columns `extra` as text, and keys that have no column."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import orjson
import polars as pl

from sglang_instrument.analysis.reading.columns import Columns
from sglang_instrument.analysis.reading.folders import Place
from sglang_instrument.analysis.reading.records.decoding import loaded
from sglang_instrument.analysis.reading.records.lines import NO_EXTRA, Line, WholeLine

#: Columns of text. `extra` is JSON, as it stands in the log; only what is not JSON (NaN, lone surrogates) is
#: null or replaced. `other_keys` is a JSON object of the line's keys without a column, and of those whose
#: values have another type than their column; null if there are none.
TEXT_COLUMNS: Final[dict[str, Any]] = {"extra": pl.String, "other_keys": pl.String}


#: The timestamp of a record as it stands in the log, where it is another text than that of its end in UTC.
STAMP: Final = "stamp"
_UTC: Final = "%Y-%m-%dT%H:%M:%S%.6f+00:00"


class WholeColumns(Columns):
    """The columns of a table, `TEXT_COLUMNS` and `STAMP`."""

    def __init__(self) -> None:
        super().__init__()
        self._texts: list[str | None] = []
        self._others: list[str | None] = []
        self._stamps: list[str] = []

    def add(self, lines: Sequence[Line], source: int) -> None:
        """Add lines of one source, which are `WholeLine`s."""
        super().add(lines, source)
        self._texts += [text_of(line) for line in lines]
        self._others += [line.others for line in lines if isinstance(line, WholeLine)]
        self._stamps += [line.timestamp for line in lines]

    def table(self, places: Sequence[Place], position: int) -> pl.DataFrame:
        """Return the columns as `Columns.table` does, and those of the text."""
        texts = (pl.Series("extra", self._texts), pl.Series("other_keys", self._others))
        table = super().table(places, position)
        stamp = pl.Series(STAMP, self._stamps, dtype=pl.String)
        usual = table.select(timestamp_in_utc(pl.col("end_us"))).to_series()
        stamp = stamp.to_frame().select(pl.when(stamp.ne_missing(usual)).then(stamp).alias(STAMP)).to_series()
        return table.with_columns(*(text.cast(pl.String) for text in texts), stamp)


def timestamp_in_utc(time_us: pl.Expr) -> pl.Expr:
    """Return times in microseconds since the epoch as the timestamps of a log in UTC."""
    return pl.from_epoch(time_us, "us").dt.strftime(_UTC)


def text_of(line: Line) -> str | None:
    """Return `extra` of a line as text; None if it has none."""
    text = bytes(line.extra)
    return None if text == bytes(NO_EXTRA) else text.decode("utf-8", "replace")


def fields_of(extra: str | None, other_keys: str | None) -> dict[str, Any]:
    """Return the fields of a record by name; where both have one, that of `extra`."""
    fields: dict[str, Any] = {}
    for text in filter(None, (other_keys, extra)):
        try:
            value = orjson.loads(text)
        except orjson.JSONDecodeError:  # a number or a depth that only json.loads takes
            value = loaded(text.encode())
        fields |= value if isinstance(value, dict) else {}
    return fields


def with_texts(records: pl.DataFrame) -> pl.DataFrame:
    """Return records with `TEXT_COLUMNS`: null where they were read without, as those of foreign logs are."""
    missing = {name: kind for name, kind in TEXT_COLUMNS.items() if name not in records.columns}
    return records.with_columns(pl.lit(None, kind).alias(name) for name, kind in missing.items())
