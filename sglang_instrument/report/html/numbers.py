"""Format numbers with their units for people: the report mixes seconds, shares and counts."""

from __future__ import annotations

from typing import Final

NOTHING: Final = "–"  # noqa: RUF001 - an en dash, on purpose
_BYTES: Final = ((1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def seconds(value: float | None) -> str:
    """Return seconds with about three digits and their unit: 231 s, 12.3 s, 41 ms, 40 us."""
    if value is None:
        return NOTHING
    for limit, digits in ((100, 0), (10, 1), (1, 2)):
        if abs(value) >= limit:
            return f"{value:,.{digits}f} s"
    if abs(value) >= 1e-3:
        return f"{value * 1e3:.{0 if abs(value) >= 1e-2 else 1}f} ms"
    return f"{value * 1e6:.0f} us" if value else "0 s"


def percent(share: float | None) -> str:
    """Return a share from 0 to 1 in percent: 99 %, 1.2 %, <0.1 %, 0 %."""
    if share is None:
        return NOTHING
    value = share * 100
    if 0 < value < 0.05:
        return "<0.1 %"
    return f"{value:.{0 if value >= 10 or not value else 1}f} %"


def count(value: float | None) -> str:
    """Return a number with thousands separators."""
    return NOTHING if value is None else f"{value:,.0f}"


def decimal(value: float | None) -> str:
    """Return a number with two digits behind the point, or with none where it is whole."""
    return NOTHING if value is None else f"{value:,.2f}".removesuffix(".00")


def short_count(value: float | None) -> str:
    """Return a number with three digits and its magnitude: 812, 14.5k, 1.14M."""
    if value is None or value < 10_000:
        return count(value)
    scaled, unit = (value / 1e6, "M") if value >= 999_500 else (value / 1e3, "k")
    return f"{scaled:.3g}{unit}" if scaled < 1000 else f"{scaled:,.0f}{unit}"


def short_bytes(value: float | None) -> str:
    """Return bytes with their unit: 812 B, 14.5 MB."""
    if value is None:
        return NOTHING
    for limit, unit in _BYTES:
        if value >= limit:
            return f"{value / limit:.3g} {unit}"
    return f"{value:.0f} B"
