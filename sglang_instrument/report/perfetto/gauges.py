"""Give the gauges of schedulers as counters: requests that ran and waited, and the cache that they held."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from sglang_instrument.analysis.answers.routing.gauges import gauge_table
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
        Times are microseconds since the Unix epoch, on the clock of the scheduler's host.
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
