"""Format numbers within sentences."""

from __future__ import annotations

import math
from collections.abc import Sequence

from sglang_instrument.cli.columns import NOTHING, UNITS


def duration(sec: float | None) -> str:
    """Return seconds with three digits and a unit: 231 s, 12.3 s, 0.214 s, 8.2 ms, 40 us."""
    return durations([sec])[0]


def durations(seconds: Sequence[float | None]) -> list[str]:
    """Return durations in one unit."""
    largest = max((abs(sec) for sec in seconds if sec), default=1.0)
    scale, unit = next(((scale, unit) for scale, unit in UNITS if largest >= 0.1 * scale), UNITS[-1])
    return [NOTHING if sec is None else f"{significant(sec / scale)} {unit}" for sec in seconds]


def significant(value: float) -> str:
    """Return a number with three digits, or with all those before the point, and never an exponent."""
    if not value or not math.isfinite(value):
        return f"{value:g}"
    return f"{value:,.{max(0, min(9, 2 - math.floor(math.log10(abs(value)))))}f}"


def percent(share: float | None) -> str:
    """Return a share in percent: 99, 1.2, <0.1, 0; -100, -1.2."""
    if share is None:
        return NOTHING
    value = share * 100
    if abs(value) >= 10:
        return f"{value:.0f}"
    if abs(value) >= 0.05:
        return f"{value:.1f}"
    return "<0.1" if value > 0 else "0"


def count(value: int | None) -> str:
    """Return a whole number with thousands separators."""
    return NOTHING if value is None else f"{value:,}"
