"""Read log files into one table of typed columns."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import polars as pl

from sglang_instrument.analysis.reading.all_fields import WholeColumns, decode_whole
from sglang_instrument.analysis.reading.chunks import open_log, whole_lines
from sglang_instrument.analysis.reading.columns import COLUMNS as COLUMNS
from sglang_instrument.analysis.reading.columns import Columns, epoch_us
from sglang_instrument.analysis.reading.files import TRACKED, Control, File
from sglang_instrument.analysis.reading.folders import Place
from sglang_instrument.analysis.reading.last_open import LastReport
from sglang_instrument.analysis.reading.lines import Extra, Line, Rejects, decode, drop_invalid_spans
from sglang_instrument.analysis.reading.sample_facts import SAMPLE_EVENTS
from sglang_instrument.errors import LogError
from sglang_instrument.schema import CONTROL_EVENTS, EVENTS, LOG_OPENED, LOOP_BLOCK, OPEN_NOW, OPEN_SPANS

_BUFFERED_LINES: Final = 100_000  # turned into columns at once; bounds the memory of Python's objects
_STAMP_LENGTH: Final = len("2026-01-05T08:00:01.500000+00:00")


@dataclass
class Source:
    """What one run wrote to one file."""

    place: Place
    file: int
    run_id: str | None


@dataclass
class Reading:
    """The result of reading files: `records` with `COLUMNS`, whose `source` is an index of `sources`."""

    files: list[File] = field(default_factory=list)
    sources: list[Source] = field(default_factory=list)
    tables: list[pl.DataFrame] = field(default_factory=list)

    @property
    def records(self) -> pl.DataFrame:
        """All records read."""
        return pl.concat(self.tables) if self.tables else pl.DataFrame(schema=COLUMNS)


def read_files(
    folder: Path, files: Sequence[File], for_digest: bool = False, with_extra: bool = False
) -> Reading:
    """Read files of a run's folder; note in each what cannot be read, and go on with the others.

    Args:
        folder: The run's folder.
        files: Files in it.
        for_digest: Whether to read only what a digest needs: then most records without a duration are only
            counted, and some columns and fields are left out.
        with_extra: Whether to add `all_fields.TEXT_COLUMNS` to the columns.
    """
    reading = Reading()
    buffer = _LineBuffer(reading, for_digest, with_extra)
    for listed in files:
        file = File(listed.path, listed.size, listed.mtime_ns, inode=listed.inode)
        reading.files.append(file)
        place = file.place
        if place is None:
            continue
        rejects = Rejects()
        try:
            _read_file(folder / file.path, place, file, rejects, buffer)
        except (OSError, EOFError, LogError) as error:
            file.unreadable = str(error)
        file.headerless = not any(control.event == LOG_OPENED for control in file.controls)
        file.torn, file.foreign = rejects.torn, file.foreign + rejects.foreign
    buffer.close()
    return reading


def _read_file(path: Path, place: Place, file: File, rejects: Rejects, buffer: "_LineBuffer") -> None:
    run_id = None
    last_report = LastReport()
    tracked: set[str] = set()
    with open_log(path) as stream:
        for chunk in whole_lines(stream):
            lines = buffer.decode(chunk, rejects)
            tracked |= TRACKED.intersection([line.event for line in lines])
            tracked |= {key for key, mark in _KEYS.items() if key not in tracked and mark in chunk}
            begun = 0
            for at in [at for at, line in enumerate(lines) if line.event in _KEPT_WITH_FILE]:
                line = lines[at]
                if line.event in CONTROL_EVENTS:
                    last_report.follow(lines[begun:at])
                    buffer.add(lines[begun:at], place, file, run_id)
                    begun = at + 1
                if line.event == LOG_OPENED:
                    run_id = line.extra.run_id if line.extra else None
                if line.event == OPEN_SPANS and line.extra:
                    drop_invalid_spans(line.extra, rejects)
                if line.event in CONTROL_EVENTS:
                    last = last_report.meet(_control(line, run_id))
                    file.controls += [] if last is None else [last]
                if line.event != OPEN_NOW:  # the others are of use while the run runs; there are many of them
                    file.controls.append(_control(line, run_id))
            last_report.follow(lines[begun:])
            buffer.add(lines[begun:], place, file, run_id)
    last = last_report.end()
    file.controls += [] if last is None else [last]
    file.tracked = sorted(tracked)


def _control(line: Line, run_id: str | None) -> Control:
    time_us = epoch_us(line.timestamp) or 0
    return Control(line.event, run_id, time_us, line.extra or Extra(), line.duration_sec)


#: The record of a blocked loop is no control record, but its stack has no column.
_KEPT_WITH_FILE: Final = CONTROL_EVENTS | {LOOP_BLOCK}
_KEYS: Final = {key: f'"{key}"'.encode() for key in TRACKED - EVENTS.keys()}


class _LineBuffer:
    """Lines that wait to be turned into a table, with their sources."""

    def __init__(self, reading: Reading, for_digest: bool, with_extra: bool) -> None:
        self._reading = reading
        self._for_digest = for_digest
        self._with_extra = with_extra
        self._columns = self._new_columns()
        self._numbers: dict[tuple[int, str | None], int] = {}
        self._position = 0

    def decode(self, chunk: bytes, rejects: Rejects) -> Sequence[Line]:
        """Decode complete lines, with what the columns need of them."""
        return decode_whole(chunk, rejects) if self._with_extra else decode(chunk, rejects)

    def _new_columns(self) -> Columns:
        return WholeColumns() if self._with_extra else Columns(self._for_digest)

    def add(self, lines: Sequence[Line], place: Place, file: File, run_id: str | None) -> None:
        """Add lines of one run in a file, without control records."""
        if not lines:
            return
        index = len(self._reading.files) - 1
        source = self._numbers.get((index, run_id))
        if source is None:
            source = self._numbers[index, run_id] = len(self._reading.sources)
            self._reading.sources.append(Source(place, index, run_id))
            file.runs.append(run_id)
            file.records.append(0)
        if self._for_digest:
            wanted = [line for line in lines if line.duration_sec is not None or not _is_plain_instant(line)]
            file.records[file.runs.index(run_id)] += len(lines) - len(wanted)
            lines = wanted
        if lines:
            self._columns.add(lines, source)
        if len(self._columns) >= _BUFFERED_LINES:
            self.close()

    def close(self) -> None:
        """Turn the buffered lines into a table."""
        if len(self._columns):
            places = [source.place for source in self._reading.sources]
            table = self._columns.table(places, self._position)
            self._position += len(self._columns)
            self._columns = self._new_columns()
            self._reading.tables.append(self._count(table))

    def _count(self, table: pl.DataFrame) -> pl.DataFrame:
        """Count the rows of each file, and drop those without a time."""
        timeless = pl.col("start_us").is_null()
        counts = table.group_by("source").agg(pl.len(), timeless=timeless.sum(), local=pl.col("local").sum())
        for number, records, without, local in counts.iter_rows():
            source = self._reading.sources[number]
            file = self._reading.files[source.file]
            file.records[file.runs.index(source.run_id)] += records - without
            file.foreign += without
            file.local_times += local
        table = table.drop("local")
        return table.filter(~timeless) if counts["timeless"].sum() else table


def _is_plain_instant(line: Line) -> bool:
    """Return whether a record without a duration has no more to tell: no reward, and a usual timestamp."""
    plain = line.extra is None or (line.extra.reward is None and line.event not in SAMPLE_EVENTS)
    return plain and len(line.timestamp) == _STAMP_LENGTH and line.timestamp[-6:-5] in "+-"
