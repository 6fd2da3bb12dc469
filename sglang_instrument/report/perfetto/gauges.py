"""Give the gauges of schedulers and GPUs as counters: requests, cache; busy share, memory, power, clock."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import polars as pl

from sglang_instrument.analysis.answers.routing.gauges import gauge_table, gpu_table
from sglang_instrument.analysis.reading.files import File
from sglang_instrument.analysis.reading.folders import Place
from sglang_instrument.analysis.run.opening import Run

#: By the column of `gauge_table`: the counter's name, its unit, and the factor to that unit.
_COUNTERS: Final = {
    "running": ("running", "requests", 1.0),
    "waiting": ("waiting", "requests", 1.0),
    "kv_cache_used_share": ("KV cache used", "%", 100.0),
}


def gauges(run: Run, files: Sequence[File]) -> Iterator[tuple[Place, str, str, list[tuple[int, float]]]]:
    """Yield the place of a scheduler, a counter's name and unit, and its values with their times.

    Args:
        run: The run.
        files: The files that are written; the schedulers among them count.

    Yields:
        Times are microseconds since the Unix epoch, on the clock of the median worker.
    """
    places = {
        file.place.stem: file.place for file in files if file.place is not None and file.place.step is None
    }
    if not places:
        return
    for (scheduler,), rows in gauge_table(run).group_by("scheduler", maintain_order=True):
        if scheduler not in places:
            continue
        for column, (name, unit, factor) in _COUNTERS.items():
            values = rows.select("at_us", column).drop_nulls().rows()
            if values:
                yield places[str(scheduler)], name, unit, [(at_us, factor * value) for at_us, value in values]


#: By the column of `gpu_table`: the same.
_OF_GPUS: Final = {
    "busy_share": ("busy", "%", 100.0),
    "memory_used_bytes": ("memory", "GiB", 2.0**-30),
    "power_watts": ("power", "W", 1.0),
    "sm_clock_mhz": ("clock", "MHz", 1.0),
}


def gpu_gauges(
    run: Run, first_us: int, last_us: int
) -> Iterator[tuple[str, int, str, str, list[tuple[int, float]]]]:
    """Yield the host and the number of a GPU, a counter's name and unit, and its values with their times.

    Args:
        run: The run.
        first_us: Only values from this time on, microseconds since the Unix epoch.
        last_us: Only values up to this time.
    """
    table = gpu_table(run).filter(pl.col("at_us").is_between(first_us, last_us))
    for (host, gpu), rows in table.group_by("host", "gpu", maintain_order=True):
        for column, (name, unit, factor) in _OF_GPUS.items():
            values = rows.select("at_us", column).drop_nulls().rows()
            if values:
                scaled = [(at_us, factor * value) for at_us, value in values]
                yield str(host), int(str(gpu)), name, unit, scaled
