"""Take numbers out of events: profilers write them as integers, as fractions, or as text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction
from typing import Any, Final

import polars as pl

_LARGEST: Final = 2**62  # a column of 64 bits holds it, and a sum of two
_LARGEST_US: Final = 4e15  # the year 2096
_NS: Final = 1000
_LONGEST_TEXT: Final = 64


def all_nanoseconds(values: Sequence[Any]) -> pl.Series:
    """Return `nanoseconds` of many values, at once where all are fractions, as most profilers write them."""
    if set(map(type, values)) <= {float, type(None)}:
        column = pl.Series(values, dtype=pl.Float64)
        in_range = column.is_finite() & (column.abs() < _LARGEST_US)
        whole_ns: pl.Series = (column.set(~in_range.fill_null(False), None) * _NS).round().cast(pl.Int64)
        return whole_ns
    return pl.Series([nanoseconds(value) for value in values], dtype=pl.Int64)


def all_whole(values: Sequence[Any]) -> pl.Series:
    """Return `whole` of many values, at once where all are integers that fit."""
    if set(map(type, values)) <= {int, type(None)}:
        try:
            column = pl.Series(values, dtype=pl.Int64)
        except (OverflowError, TypeError, pl.exceptions.PolarsError):
            pass
        else:
            return column.set((column.abs() >= _LARGEST).fill_null(False), None)
    return pl.Series([whole(value) for value in values], dtype=pl.Int64)


def nanoseconds(microseconds: float | str | None) -> int | None:
    """Return microseconds as nanoseconds: exact for integers and text; None if they are no time."""
    if type(microseconds) is float:
        return round(microseconds * _NS) if -_LARGEST_US < microseconds < _LARGEST_US else None
    if type(microseconds) is int:
        return microseconds * _NS if -_LARGEST_US < microseconds < _LARGEST_US else None
    if not isinstance(microseconds, str) or len(microseconds) > _LONGEST_TEXT:
        return None
    if not math.isfinite(_float(microseconds)) or abs(_float(microseconds)) >= _LARGEST_US:
        return None
    return round(Fraction(microseconds.strip()) * _NS)


def whole(value: float | str | None) -> int | None:
    """Return an integer, also one in text; None for anything else."""
    if value is None:
        return None
    if isinstance(value, str):
        text = value.strip() if len(value) <= _LONGEST_TEXT else ""
        value = int(text) if text.removeprefix("-").isdecimal() else _float(text)
    if type(value) is float:
        value = int(value) if value.is_integer() else _LARGEST
    return value if type(value) is int and -_LARGEST < value < _LARGEST else None


def _float(text: str) -> float:
    """Return the number in text without an exponent or other words; NaN if there is none."""
    plain = text.strip().removeprefix("-").replace(".", "", 1)
    return float(text) if plain.isascii() and plain.isdecimal() else math.nan
