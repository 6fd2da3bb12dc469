"""Format numbers for people."""

from typing import Final

NOTHING: Final = "-"


def seconds(value: float | None) -> str:
    """Return seconds with about three digits, below a millisecond with the unit: 231, 12.3, 40 us."""
    if value is None:
        return NOTHING
    for limit, digits in ((100, 0), (10, 1), (1, 2), (0.1, 3)):
        if abs(value) >= limit:
            return f"{value:,.{digits}f}"
    if 0 < abs(value) < 1e-3:
        return f"{value * 1e6:.0f} us"
    return f"{value:.4f}" if value else "0"


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


def short_count(value: int | None) -> str:
    """Return a number with at least three significant digits: 812, 14.5k, 1.14M."""
    if value is None or value < 10_000:
        return count(value)
    scaled, unit = (value / 1e6, "M") if value >= 999_500 else (value / 1e3, "k")
    return f"{scaled:.{max(0, 2 - (scaled >= 10) - (scaled >= 100))}f}{unit}"


def count(value: int | None) -> str:
    """Return a whole number with thousands separators."""
    return NOTHING if value is None else f"{value:,}"
