"""Make families of metrics with the names and units of this package."""

from collections.abc import Iterable
from typing import Final

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily

from sglang_instrument.plain_text import plain

PREFIX: Final = "sglang_instrument_"
_UNITS: Final = ("seconds", "bytes", "watts", "hertz", "ratio")

#: The values of the labels, and the value; None where it is not known.
Value = tuple[tuple[str, ...], float | None]


def gauge(name: str, text: str, labels: tuple[str, ...], values: Iterable[Value]) -> Metric:
    """Return a gauge, its labels without control characters; what is not known has no sample."""
    family = GaugeMetricFamily(PREFIX + name, text, labels=labels, unit=unit_of(name))
    for names, value in values:
        if value is not None:
            family.add_metric([plain(label) for label in names], float(value))
    return family


def unit_of(name: str) -> str:
    """Return the unit in which a name ends; "" without one."""
    last = name.rpartition("_")[2]
    return last if last in _UNITS else ""
