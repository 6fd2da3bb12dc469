"""Write the fields of events as words for the report: `tool_calls = 3, parser = json`."""

from __future__ import annotations

from itertools import islice
from typing import Any, Final

import polars as pl

from sglang_instrument.analysis.reading.all_fields import fields_of
from sglang_instrument.analysis.reading.records.decoding import as_text

_IN_COLUMNS: Final = frozenset({"request_id", "turn"})
_LONGEST: Final = 100  # characters of a value
_MOST: Final = 40  # fields of an event


def with_words(events: pl.DataFrame) -> pl.DataFrame:
    """Return events with `fields`, words, in place of `all_fields.TEXT_COLUMNS`."""
    texts = events.select("extra", "other_keys").iter_rows()
    words = pl.Series("fields", [_words(*row) for row in texts], dtype=pl.String)
    return events.drop("extra", "other_keys").with_columns(words)


def _words(extra: str | None, other_keys: str | None) -> str:
    fields = [
        (name, value) for name, value in fields_of(extra, other_keys).items() if name not in _IN_COLUMNS
    ]
    listed = ", ".join(f"{_cut(name)} = {_cut(_text(value))}" for name, value in islice(fields, _MOST))
    return f"{listed} and {len(fields) - _MOST:,} more" if len(fields) > _MOST else listed


def _text(value: Any) -> str:
    return value if isinstance(value, str) else as_text(value)


def _cut(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."
