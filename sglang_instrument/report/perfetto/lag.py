"""Read how late the event loops were, from the records of `event_loop_lag` and `event_loop_block`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from msgspec import Struct

from sglang_instrument.analysis.reading.columns import epoch_us
from sglang_instrument.analysis.reading.files import File
from sglang_instrument.analysis.run.newest_records import newest_records
from sglang_instrument.analysis.run.opening import Run

_EVENTS = ("event_loop_lag", "event_loop_block")


class _Extra(Struct, gc=False):
    lag_sec: float | None = None
    run_id: str | None = None


class _Line(Struct, gc=False):
    event: str
    timestamp: str
    duration_sec: float | None = None
    start_us: int | None = None
    workid: int | None = None
    extra: _Extra | None = None


_LINES = msgspec.json.Decoder(_Line)


def lags(run: Run, files: Sequence[File]) -> Iterator[tuple[int, int, float]]:
    """Yield worker, the time in microseconds at which a delay was noticed, and the delay in seconds.

    Args:
        run: The run.
        files: The files to read.
    """
    workers = [file for file in files if file.place is not None and file.place.role == "worker"]
    workers = [file for file in workers if file.unreadable is None]
    for file, line in newest_records(run, workers, _EVENTS, _LINES):
        if file.place is not None and line.event in _EVENTS and line.extra and line.extra.lag_sec:
            worker = file.place.worker if line.workid is None else line.workid
            yield worker, _at_us(line), line.extra.lag_sec


def _at_us(line: _Line) -> int:
    if line.start_us is not None:
        return line.start_us + round((line.duration_sec or 0.0) * 1e6)
    return epoch_us(line.timestamp) or 0
