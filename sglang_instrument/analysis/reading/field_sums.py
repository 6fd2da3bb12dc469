"""Sum fields of records up by request and event: any field of a line, by the name that the log has for it."""

import json
from collections.abc import Collection, Iterator
from typing import Any, Final

import polars as pl

from sglang_instrument.analysis.reading.all_fields import fields_of, with_texts
from sglang_instrument.analysis.reading.records.decoding import as_text

_KEY: Final = ("source", "role", "step", "validate", "worker", "request_id", "attempt", "event")
_EXACT: Final = 2**53  # up to this number, a float holds each integer
_VALUES: Final = {
    "row": pl.UInt32,
    "field": pl.String,
    "number": pl.Float64,
    "is_whole": pl.Boolean,
    "text": pl.String,
}
_Value = tuple[int, str, float | None, bool | None, str | None]


def field_sums(records: pl.DataFrame, names: Collection[str]) -> pl.DataFrame:
    """Return one row for each field of each request and event; without names, one for each field there is.

    Args:
        records: With the `attempt` of each, and `all_fields.TEXT_COLUMNS`, or without any fields.
        names: Keys of `extra` or of `other_keys`.

    Returns:
        source, role, step, validate, worker, request_id, attempt, event, field; numbers: how many of its
        values are numbers, where true is 1 and false 0; total and most: their sum and maximum; is_whole:
        whether all are integers; others: how many are no numbers; text: of these the last one, lists and
        objects as JSON; text_us: when it was.
    """
    records = with_texts(records).with_row_index("row")
    values = pl.DataFrame(list(_values(records, dict.fromkeys(names))), schema=_VALUES, orient="row")
    columns = records.select(pl.col(pl.Categorical).cast(pl.String), pl.exclude(pl.Categorical))
    columns = columns.select("row", "end_us", *_KEY)
    of_rows = values.join(columns, on="row", how="left", maintain_order="left")
    is_text = pl.col("text").is_not_null()
    return (
        of_rows.sort("end_us", maintain_order=True)
        .group_by(*_KEY, "field", maintain_order=True)
        .agg(
            numbers=pl.col("number").count().cast(pl.Int64),
            total=pl.col("number").sum(),
            most=pl.col("number").max(),
            is_whole=pl.col("is_whole").all(),
            others=is_text.sum().cast(pl.Int64),
            text=pl.col("text").filter(is_text).last(),
            text_us=pl.col("end_us").filter(is_text).last(),
        )
        .sort("source", maintain_order=True)
    )


def _values(records: pl.DataFrame, names: Collection[str]) -> Iterator[_Value]:
    texts = records.filter(_may_hold(names)).select("row", "extra", "other_keys")
    seen: set[str] = set()
    for row, extra, other_keys in texts.iter_rows():
        fields = fields_of(extra, other_keys, not_finite=str)
        for name in names or fields.keys() - seen:
            if (value := fields.get(name)) is not None:
                seen.add(name)
                yield (row, name, *_parsed(value))


def _may_hold(names: Collection[str]) -> pl.Expr:
    """Return whether a row may hold one of these fields, found without decoding its text."""
    marks = [json.dumps(name) for name in names]
    texts = pl.col("extra", "other_keys")
    # A writer may escape characters beyond ASCII, or not.
    if not marks or any("\\" in mark for mark in marks):
        return pl.any_horizontal(texts.is_not_null())
    return pl.any_horizontal(texts.str.contains_any(marks).fill_null(False))


def _parsed(value: Any) -> tuple[float | None, bool | None, str | None]:
    """Return a value as a number and whether it is an integer, or as a text."""
    if isinstance(value, (int, float)) and abs(value) < 1e300:
        return float(value), isinstance(value, int) and abs(value) <= _EXACT, None
    return None, None, value if isinstance(value, str) else as_text(value)
