"""Read how late the event loops were, from the records of `event_loop_lag` and `event_loop_block`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from sglang_instrument.analysis.reading.files import File
from sglang_instrument.analysis.reading.records.fields import Fields
from sglang_instrument.analysis.reading.records.lines import Line
from sglang_instrument.analysis.reading.times import epoch_us
from sglang_instrument.analysis.run.newest_records import newest_records
from sglang_instrument.analysis.run.opening import Run

_EVENTS = ("event_loop_lag", "event_loop_block")


class _Lag(Fields, gc=False):
    lag_sec: float | None = None


def lags(run: Run, files: Sequence[File]) -> Iterator[tuple[int, int, float]]:
    """Yield worker, the time in microseconds at which a delay was noticed, and the delay in seconds.

    Args:
        run: The run.
        files: The files to read.
    """
    workers = [file for file in files if file.place is not None and file.place.role == "worker"]
    workers = [file for file in workers if file.unreadable is None]
    for file, line, fields in newest_records(run, workers, _Lag, events=_EVENTS):
        if file.place is not None and fields.lag_sec:
            worker = file.place.worker if line.workid is None else line.workid
            yield worker, _at_us(line), fields.lag_sec


def _at_us(line: Line) -> int:
    if line.start_us is not None:
        return line.start_us + round((line.duration_sec or 0.0) * 1e6)
    return epoch_us(line.timestamp) or 0
