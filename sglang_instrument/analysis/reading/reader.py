"""Read log files into one table of typed columns."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from itertools import compress
from pathlib import Path
from typing import Final

import polars as pl

from sglang_instrument.analysis.reading.all_fields import WholeColumns
from sglang_instrument.analysis.reading.chunks import lines_between
from sglang_instrument.analysis.reading.columns import COLUMNS as COLUMNS
from sglang_instrument.analysis.reading.columns import Columns
from sglang_instrument.analysis.reading.files import TRACKED, Control, File, Range
from sglang_instrument.analysis.reading.folders import ROLE_OF_REQUESTS, Place
from sglang_instrument.analysis.reading.last_open import unended_lines
from sglang_instrument.analysis.reading.last_report import LastReport
from sglang_instrument.analysis.reading.records.fields import (
    ControlFields,
    drop_invalid_spans,
    is_object,
    typed,
    where_rewards,
)
from sglang_instrument.analysis.reading.records.lines import Line, Rejects, decode, decode_whole
from sglang_instrument.analysis.reading.sample_facts import SAMPLE_EVENTS
from sglang_instrument.analysis.reading.times import epoch_us
from sglang_instrument.errors import LogError
from sglang_instrument.schema import (
    CONTROL_EVENTS,
    EVENTS,
    LOG_OPENED,
    LOOP_BLOCK,
    OPEN_NOW,
    OPEN_SPANS,
    kind_of,
)

_BUFFERED_LINES: Final = 100_000  # turned into columns at once; bounds the memory of Python's objects
_REQUEST_ID: Final = b'"request_id"'
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
        file = File(listed.path, listed.size, listed.mtime_ns, inode=listed.inode, range=listed.range)
        reading.files.append(file)
        place = file.place
        if place is None:
            file.unreadable = listed.unreadable
            continue
        rejects = Rejects(unfit=file.unfit)
        try:
            _read_file(folder / file.path, place, file, rejects, buffer)
        except (OSError, EOFError, LogError) as error:
            file.unreadable = str(error)
        file.headerless = not any(control.event == LOG_OPENED for control in file.controls)
        file.torn, file.foreign = rejects.torn, file.foreign + rejects.foreign
    buffer.close()
    return reading


def _read_file(path: Path, place: Place, file: File, rejects: Rejects, buffer: "_LineBuffer") -> None:
    bounds = file.range or Range()
    run_id = bounds.run_id
    last_report = LastReport(bounds.opened)
    tracked: set[str] = set()
    buffer.begin_file(place)
    for chunk in lines_between(path, bounds.begin, bounds.end):
        lines = buffer.decode(chunk, rejects)
        names = [line.event for line in lines]
        events = set(names)
        buffer.look_for_requests(lines, events)
        tracked |= TRACKED & events
        tracked |= _keys_in(lines, tracked)
        begun = 0
        for number in _where(names, _KEPT_WITH_FILE & events):
            line = lines[number]
            is_control = line.event in CONTROL_EVENTS
            if is_control:
                last_report.follow(lines[begun:number])
                buffer.add(lines[begun:number], place, file, run_id)
                begun = number + 1
            # What does not fit in a record of a blocked loop is counted with its columns.
            fields = typed(line.extra, ControlFields, file.unfit if is_control else None)
            if line.event == LOG_OPENED:
                run_id = fields.run_id
            if line.event == OPEN_SPANS and is_object(line.extra):
                drop_invalid_spans(fields, rejects)
            time_us = epoch_us(line.timestamp) or 0
            control = Control(line.event, run_id, time_us, fields, line.duration_sec)
            if is_control:
                buffer.add_unended(last_report.meet(control), place, file)
            if line.event != OPEN_NOW:  # the others are of use while the run runs; there are many of them
                file.controls.append(control)
        last_report.follow(lines[begun:])
        buffer.add(lines[begun:], place, file, run_id)
    if bounds.end is None:
        buffer.add_unended(last_report.end(), place, file)
    file.tracked = sorted(tracked)


#: The record of a blocked loop is no control record, but its stack has no column.
_KEPT_WITH_FILE: Final = CONTROL_EVENTS | {LOOP_BLOCK}
_KEYS: Final = {key: f'"{key}"'.encode() for key in TRACKED - EVENTS.keys()}
_COMMON: Final = b'"rid'  # begins each of these; most logs hold none, and one search finds that out


def _keys_in(lines: Sequence[Line], known: set[str]) -> set[str]:
    """Return those of `_KEYS` that are in `extra` of lines, without those that are known."""
    if not (new := _KEYS.keys() - known):
        return set()
    extras = b"\n".join([line.extra for line in lines])
    return {key for key in new if _KEYS[key] in extras} if _COMMON in extras else set()


def _where(names: Sequence[str], events: Collection[str]) -> list[int]:
    return [number for number, name in enumerate(names) if name in events] if events else []


class _LineBuffer:
    """Lines that wait to be turned into a table, with their sources."""

    def __init__(self, reading: Reading, for_digest: bool, with_extra: bool) -> None:
        self._reading = reading
        self._for_digest = for_digest
        self._with_extra = with_extra
        self._columns = self._new_columns()
        self._numbers: dict[tuple[int, str | None], int] = {}
        self._position = 0
        self._needs_ids = False

    def begin_file(self, place: Place) -> None:
        """Expect no whole requests in a worker's file, until it is known to log them."""
        self._needs_ids = place.role == ROLE_OF_REQUESTS

    def look_for_requests(self, lines: Sequence[Line], events: Collection[str]) -> None:
        """Find out whether the file logs whole requests: else a digest needs all of its ids.

        Args:
            lines: The lines.
            events: Their events.
        """
        if self._needs_ids:
            whole = {event for event in events if kind_of(event).phase == "request"}
            self._needs_ids = not any(
                line.phase == "request" if line.phase else line.event in whole
                for line in lines
                if line.duration_sec is not None
            )

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
            wanted = _without_plain_instants(lines, keep_ids=self._needs_ids)
            file.records[file.runs.index(run_id)] += len(lines) - len(wanted)
            lines = wanted
        if lines:
            self._columns.add(lines, source, all_ids=self._needs_ids, unfit=file.unfit)
        if len(self._columns) >= _BUFFERED_LINES:
            self.close()

    def add_unended(self, report: Control | None, place: Place, file: File) -> None:
        """Keep the last report of a process that ended, and for a digest add what it names as records."""
        if report is None:
            return
        file.controls.append(report)
        lines = unended_lines(report.extra, report.time_us) if self._for_digest else []
        for line in lines:
            line.workid, line.step, line.validate = place.worker, place.step, place.validate or None
        self.add(lines, place, file, report.run_id)
        if lines:
            file.records[file.runs.index(report.run_id)] -= len(lines)  # the log has no such records

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


def _without_plain_instants(lines: Sequence[Line], keep_ids: bool) -> Sequence[Line]:
    """Return lines without instant events that hold nothing of what a digest needs.

    Args:
        lines: The lines.
        keep_ids: Whether it needs those that name a request.
    """
    instants = [number for number, line in enumerate(lines) if line.duration_sec is None]
    plain = [
        number
        for number in instants
        if _is_plain(line := lines[number]) and not (keep_ids and _REQUEST_ID in bytes(line.extra))
    ]
    if not plain:
        return lines
    is_wanted = bytearray(b"\1") * len(lines)
    for number in plain:
        is_wanted[number] = 0
    for index in where_rewards([lines[number].extra for number in plain]):
        is_wanted[plain[index]] = 1
    return list(compress(lines, is_wanted))


def _is_plain(line: Line) -> bool:
    """Return whether an instant event has a usual timestamp, and names no samples and no spawner."""
    of_samples = line.event in SAMPLE_EVENTS and is_object(line.extra)
    is_usual = line.spawned_by is None and not of_samples
    return is_usual and len(line.timestamp) == _STAMP_LENGTH and line.timestamp[-6:-5] in "+-"
