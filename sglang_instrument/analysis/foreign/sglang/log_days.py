"""Find the days of stamps that have none: the last one lies on the day on which the file was last changed."""

import re
from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import Final

import polars as pl

_PARTS: Final = re.compile(
    r"(?:(?P<month>[A-Z][a-z]{2}) {1,2}(?P<day>\d{1,2}) |(?P<number>\d\d)-(?P<of_month>\d\d) )?"
    r"(?P<hour>\d\d):(?P<minute>\d\d):(?P<second>\d\d)(?:[.,](?P<fraction>\d{1,9}))?"
)
_MONTHS: Final = ("Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec")
_DAY_US: Final = 86_400_000_000


def days_of(stamps: pl.DataFrame, changed_us: dict[int, int]) -> pl.Series:
    """Return Unix microseconds of stamps without a year, or without a date.

    Args:
        stamps: `file`, and `undated`: "08:00:00", "Jan 05 08:00:00" or "01-05 08:00:00"; null without one.
        changed_us: When each file was last changed.
    """
    times: list[int | None] = [None] * len(stamps)
    rows = stamps.with_row_index("row").drop_nulls("undated").select("row", "file", "undated")
    for (file,), of_file in rows.partition_by("file", as_dict=True, maintain_order=True).items():
        times_us = _times(of_file["undated"].to_list(), changed_us.get(int(file), 0))
        for row, time_us in zip(of_file["row"], times_us, strict=True):
            times[row] = time_us
    return pl.Series("of_day", times, pl.Int64)


def _times(texts: Sequence[str], changed_us: int) -> list[int | None]:
    """Return the times of stamps of one file, in its order; at midnight the time of day falls by half."""
    changed = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(microseconds=changed_us)
    times: list[int | None] = []
    day = before = 0
    days: list[int | None] = []  # since the file began; None where the stamp names its day
    for text in texts:
        part = _PARTS.fullmatch(text)
        of_day = None if part is None else _of_day_us(part)
        if part is None or of_day is None:
            times.append(None)
            days.append(None)
        elif part["month"] or part["number"]:
            times.append(_dated_us(part, of_day, changed))
            days.append(None)
        else:
            day += before - of_day > _DAY_US // 2
            before = of_day
            times.append(of_day)
            days.append(day)
    midnight_us = changed_us // _DAY_US * _DAY_US
    return [
        time_us if number is None or time_us is None else midnight_us - (day - number) * _DAY_US + time_us
        for time_us, number in zip(times, days, strict=True)
    ]


def _of_day_us(part: re.Match[str]) -> int | None:
    hour, minute, second = (int(part[name]) for name in ("hour", "minute", "second"))
    if hour > 23 or minute > 59 or second > 60:
        return None
    fraction = int((part["fraction"] or "0").ljust(6, "0")[:6])
    return ((hour * 60 + minute) * 60 + second) * 1_000_000 + fraction


def _dated_us(part: re.Match[str], of_day_us: int, changed: datetime) -> int | None:
    """Return the time on a day without a year: the last such day before the file was changed."""
    name, number = part["month"], part["number"]
    month = _MONTHS.index(name) + 1 if name in _MONTHS else int(number or 0)
    day = int(part["day"] or part["of_month"])
    for year in (changed.year, changed.year - 1):
        try:
            midnight = datetime(year, month, day, tzinfo=timezone.utc)
        except ValueError:
            continue
        if midnight <= changed + timedelta(days=1):
            return int(midnight.timestamp()) * 1_000_000 + of_day_us
    return None
