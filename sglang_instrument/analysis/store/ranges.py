"""Keep a log file outside of steps by ranges of bytes: what it grows by goes into one more part.

The log of an engine's process grows as long as the run lasts, and no step in it ends. While it is written
to, the whole lines that no part holds go into a new one, once they are many; the last ones are read each
time. Ranges hold records as they stand in the log, and no digest: spans of one may be inside those of the
next. A file that shrank, or that another one replaced, is read as a whole, and its ranges are made anew.
"""

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, islice
from pathlib import Path
from typing import Final

import msgspec
import polars as pl

from sglang_instrument.analysis.digests.parquet import read_table
from sglang_instrument.analysis.reading.chunks import as_marks, marked_lines
from sglang_instrument.analysis.reading.files import Control, File, Range
from sglang_instrument.analysis.reading.folders import ROLE_OF_REQUESTS
from sglang_instrument.analysis.reading.reader import read_files
from sglang_instrument.analysis.reading.records.lines import Rejects, decode
from sglang_instrument.analysis.reading.records.unfit import summed_unfit
from sglang_instrument.analysis.store.homes import homes
from sglang_instrument.analysis.store.part_records import LINES, other_lines, save_lines, stored_rows
from sglang_instrument.analysis.store.parts import (
    PARTS,
    HeldRange,
    fill_part,
    finish_part,
    new_part,
    read_index,
    records_of,
    written_files,
)
from sglang_instrument.analysis.store.records import rows_as_read, save_records
from sglang_instrument.regular_files import open_regular
from sglang_instrument.safe_files.folder import SafeFolder
from sglang_instrument.schema import LOG_CLOSED, LOG_OPENED, OPEN_NOW, STEP_CLOSED

_LEAST_BYTES: Final = 2**20  # of a range; fewer are read as lines
_MOST_BYTES: Final = 16 * 2**20  # of a range; some 50,000 records
_MOST_NEW: Final = 4  # ranges that a call writes: it ends seconds after its answer, and the next one goes on
_SMALL: Final = 25_000  # records of a range
_MOST_SMALL: Final = 8  # ranges of a file side by side; more are put together
_CHECKED_BYTES: Final = 4096
_REPORT: Final = f'"{OPEN_NOW}"'.encode()
_CLOSING: Final = (STEP_CLOSED, LOG_CLOSED)


def has_ranges(file: File) -> bool:
    """Return whether a log file may be kept by ranges: it is on this machine, and no step's."""
    place = file.place
    is_outside = place is not None and place.step is None and place.role != ROLE_OF_REQUESTS
    return is_outside and file.path.endswith(".jsonl") and file.inode != 0 and file.unreadable is None


def with_ranges(folder: Path, files: Sequence[File]) -> list[File]:
    """Return files of a run with the ranges that its store holds of them."""
    if not any(map(has_ranges, files)):
        return list(files)
    ranged: dict[str, Range] = {}
    for home in homes(folder):
        for path, ranges in counting_ranges(folder, files, read_index(home).ranges).items():
            parts = [str(home.path / PARTS / held.name) for held in ranges]
            ranged.setdefault(path, Range(ranges[-1].end, parts=parts))
    return [msgspec.structs.replace(file, range=ranged.get(file.path)) for file in files]


def counting_ranges(
    folder: Path, files: Sequence[File], ranges: Sequence[HeldRange]
) -> dict[str, list[HeldRange]]:
    """Return the ranges that still tell what the files hold, by path, from the first byte on.

    Args:
        folder: The run's folder.
        files: Files of it.
        ranges: Those of the index.
    """
    by_path: dict[str, list[HeldRange]] = {}
    for held in sorted(ranges, key=lambda held: held.begin):
        by_path.setdefault(held.path, []).append(held)
    counting = {
        file.path: [*_adjoining(file, by_path[file.path])]
        for file in files
        if file.path in by_path and has_ranges(file)
    }
    return {path: held for path, held in counting.items() if held and _is_as_it_was(folder, held[-1])}


def _adjoining(file: File, ranges: Sequence[HeldRange]) -> Iterator[HeldRange]:
    end = 0
    for held in ranges:
        if held.begin == end and held.end <= file.size and held.inode == file.inode:
            yield held
            end = held.end


def _is_as_it_was(folder: Path, last: HeldRange) -> bool:
    try:
        return _check(folder / last.path, last.end) == last.check
    except OSError:
        return False


def _check(path: Path, end: int) -> str:
    begin = max(0, end - _CHECKED_BYTES)
    return hashlib.sha256(_bytes_between(path, begin, end)).hexdigest()[:24]


def _bytes_between(path: Path, begin: int, end: int) -> bytes:
    with open_regular(path) as file:
        file.seek(begin)
        return file.read(end - begin)


def pieces_of(file: File) -> list[File]:
    """Return a file as it is read: what parts hold of it, each by itself, and then the lines after them.

    Raises:
        DAMAGED: A part cannot be read.
    """
    if file.range is None:
        return [file]
    pieces, opened = [], None
    for part in file.range.parts:
        [stored] = written_files(Path(part))[1]
        pieces.append(msgspec.structs.replace(stored, part=part, range=Range(opened=opened)))
        opened = _last_opened(stored) or opened
    return [*pieces, msgspec.structs.replace(file, range=Range(file.range.begin, opened=opened))]


def _last_opened(file: File) -> Control | None:
    headers = [control for control in file.controls if control.event == LOG_OPENED]
    return headers[-1] if headers else None


def joined_file(file: File, pieces: Sequence[File]) -> File:
    """Return a file as it was read piece by piece, in the order of its lines."""
    records: dict[str | None, int] = {}
    for piece in pieces:
        for run_id, count in zip(piece.runs, piece.records, strict=True):
            records[run_id] = records.get(run_id, 0) + count
    return msgspec.structs.replace(
        file,
        runs=list(records),
        records=list(records.values()),
        controls=[control for piece in pieces for control in piece.controls],
        headerless=all(piece.headerless for piece in pieces),
        torn=sum(piece.torn for piece in pieces),
        foreign=sum(piece.foreign for piece in pieces),
        local_times=sum(piece.local_times for piece in pieces),
        unreadable=pieces[-1].unreadable,
        unfit=summed_unfit(piece.unfit for piece in pieces),
        tracked=sorted({name for piece in pieces for name in piece.tracked or ()}),
    )


def has_grown(file: File, held: Sequence[HeldRange]) -> bool:
    """Return whether a file may have enough new lines for another range."""
    return has_ranges(file) and file.size - (held[-1].end if held else 0) >= _LEAST_BYTES


def add_ranges(
    home: SafeFolder, folder: Path, growing: Sequence[File], held: Mapping[str, Sequence[HeldRange]]
) -> list[HeldRange]:
    """Return the ranges of a store: those that count, and new ones of what files grew by.

    Args:
        home: The store, whose lock the caller holds.
        folder: The run's folder.
        growing: The files that get new ones.
        held: Those that count, by path.

    Raises:
        OSError, polars.exceptions.PolarsError: They cannot be written.
    """
    ranges = {path: list(of_file) for path, of_file in held.items()}
    left = _MOST_NEW
    for file in growing:
        if not has_grown(file, ranges.get(file.path, ())):
            continue
        for new in islice(_new_ranges(home, folder, file, ranges.get(file.path, [])), left):
            ranges.setdefault(file.path, []).append(new)
            left -= 1
    return [part for of_file in ranges.values() for part in _without_many_small(home, of_file)]


def _new_ranges(home: SafeFolder, folder: Path, file: File, held: Sequence[HeldRange]) -> Iterator[HeldRange]:
    """Write the whole lines of a file that no part holds, and yield the range of each part."""
    begin, opened = 0, None
    for part in held:
        begin, opened = part.end, _last_opened(_stored(home, part)) or opened
    path = folder / file.path
    while (end := _end_of_range(path, begin, file.size)) - begin >= _LEAST_BYTES:
        reading = read_files(
            folder, [msgspec.structs.replace(file, range=Range(begin, end, opened))], with_extra=True
        )
        [read] = reading.files
        if read.unreadable is not None:
            return
        name = _write(home, read, rows_as_read(reading), other_lines(folder, [read]))
        yield HeldRange(
            name, file.path, file.inode, begin, end, file.mtime_ns, records_of([read]), _check(path, end)
        )
        begin, opened = end, _last_opened(read) or opened


def _stored(home: SafeFolder, held: HeldRange) -> File:
    [file] = written_files(home.path / PARTS / held.name)[1]
    return file


def _write(home: SafeFolder, file: File, rows: pl.DataFrame, lines: pl.DataFrame) -> str:
    """Write the part of a range; return its name."""
    name, draft = new_part(home)
    save_records(draft, rows)
    save_lines(draft, lines)
    fill_part(draft, [file], {})
    finish_part(home, name)
    return name


def _end_of_range(path: Path, begin: int, size: int) -> int:
    """Return where a range ends: after the last whole line, or before a report whose spans may go on.

    What is open when a process ends is told by its last report, and by the lines after it.
    """
    block = _bytes_between(path, begin, min(size, begin + _MOST_BYTES))
    end = block.rfind(b"\n") + 1
    position = end
    while (position := block.rfind(_REPORT, 0, position)) >= 0:
        position = block.rfind(b"\n", 0, position) + 1
        line = block[position : block.find(b"\n", position)]
        if OPEN_NOW in _events_in(line):
            closing = marked_lines(block[position:end], as_marks(_CLOSING))
            return begin + (position if _events_in(closing).isdisjoint(_CLOSING) else end)
    return begin + end


def _events_in(lines: bytes) -> set[str]:
    return {line.event for line in decode(lines, Rejects())}


def _without_many_small(home: SafeFolder, ranges: Sequence[HeldRange]) -> Iterator[HeldRange]:
    """Yield the ranges of a file; many small ones side by side become one."""
    for is_small, group in groupby(ranges, key=lambda held: held.records < _SMALL):
        side_by_side = list(group)
        if is_small and len(side_by_side) > _MOST_SMALL:
            yield _joined(home, side_by_side)
        else:
            yield from side_by_side


def _joined(home: SafeFolder, ranges: Sequence[HeldRange]) -> HeldRange:
    """Write a part with what the parts of several ranges hold, which adjoin each other."""
    folders = [home.path / PARTS / held.name for held in ranges]
    rows = pl.concat(map(stored_rows, folders))
    lines = pl.concat([read_table(folder / f"{LINES}.parquet") for folder in folders])
    files = [_stored(home, held) for held in ranges]
    name = _write(home, joined_file(files[-1], files), rows, lines)
    records = sum(held.records for held in ranges)
    return msgspec.structs.replace(ranges[-1], name=name, begin=ranges[0].begin, records=records)
