"""Read how late the event loops were, from the records of `event_loop_lag` and `event_loop_block`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import msgspec
from msgspec import Struct

from sglang_instrument.analysis.reading.columns import epoch_us
from sglang_instrument.analysis.reading.files import File, newest_run_filter
from sglang_instrument.analysis.run.opening import Run
from sglang_instrument.schema import LOG_OPENED

_EVENTS = ("event_loop_lag", "event_loop_block")
_MARKS = (b'"event_loop_', b'"log_opened"')


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


_DECODE = msgspec.json.Decoder(_Line).decode


def lags(run: Run, files: Sequence[File]) -> Iterator[tuple[int, int, float]]:
    """Yield worker, the time in microseconds at which a delay was noticed, and the delay in seconds.

    Args:
        run: The run.
        files: The files to read.
    """
    counts = newest_run_filter(run.files)
    for file in files:
        if file.place is None or file.place.role != "worker" or file.unreadable is not None:
            continue
        run_id = None
        for line in _lines(run, file):
            if line.event == LOG_OPENED:
                run_id = line.extra.run_id if line.extra else None
            elif line.event in _EVENTS and line.extra and line.extra.lag_sec and counts(file, run_id):
                worker = file.place.worker if line.workid is None else line.workid
                yield worker, _at_us(line), line.extra.lag_sec


def _lines(run: Run, file: File) -> Iterator[_Line]:
    """Yield the few lines with these events; only they are decoded."""
    for chunk in run.read_lines(file):
        for raw in sorted(_with_marks(chunk)):
            try:
                yield _DECODE(chunk[slice(*raw)])
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                continue  # a torn line, which the reader has counted


def _with_marks(chunk: bytes) -> set[tuple[int, int]]:
    """Return the start and end of each line that contains a mark."""
    found = set()
    for mark in _MARKS:
        at = chunk.find(mark)
        while at >= 0:
            end = chunk.find(b"\n", at)
            end = len(chunk) if end < 0 else end
            found.add((chunk.rfind(b"\n", 0, at) + 1, end))
            at = chunk.find(mark, end)
    return found


def _at_us(line: _Line) -> int:
    if line.start_us is not None:
        return line.start_us + round((line.duration_sec or 0.0) * 1e6)
    return epoch_us(line.timestamp) or 0
