"""Read a batch of files and make the requested tables."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import quote

import msgspec
import polars as pl

from sglang_instrument.analysis.digests.digest import digest_records
from sglang_instrument.analysis.digests.record_attempts import attempts_of
from sglang_instrument.analysis.executors.executor import BatchResult, Tables
from sglang_instrument.analysis.executors.logged_records import read_logged
from sglang_instrument.analysis.reading.chunks import as_marks, marked_lines, readable_lines
from sglang_instrument.analysis.reading.field_sums import field_sums
from sglang_instrument.analysis.reading.files import File
from sglang_instrument.analysis.reading.reader import Reading
from sglang_instrument.analysis.run.event_paths import path_sums
from sglang_instrument.analysis.run.event_tables import event_rows, event_times
from sglang_instrument.analysis.store.part_records import other_lines
from sglang_instrument.analysis.store.records import record_rows, write_records
from sglang_instrument.gc_pause import uncollected
from sglang_instrument.safe_files.folder import SafeFolder

_OF_FIELDS: Final = frozenset({"fields", "records"})  # tables that need all fields of a record


class BatchJob(msgspec.Struct, frozen=True):
    """The requested tables: "digest", "events", "paths", "fields", or "times" of the events in `names`.

    "records" are written as Parquet below `target`, into the folder that `folders` names for the first file
    of a batch, else into one with the name of that file. Without a target, they are the table.

    "fields" are the sums of those in `names`, or of all without names.

    "lines" are the lines that hold one of `names` in quotes; "other_lines" are those that are no records: for
    these, the files are given as they were read. `source` is the number of their file.
    """

    tables: str
    names: tuple[str, ...] = ()
    target: SafeFolder | None = None
    folders: Mapping[str, str] = {}

    @property
    def with_extra(self) -> bool:
        """Whether it needs all fields of a record."""
        return self.tables in _OF_FIELDS

    def run(self, folder: Path, batch: Sequence[File]) -> BatchResult:
        """Return the files as read, and their tables."""
        if self.tables == "lines":
            return _lines(batch, "lines", _marked(folder, batch, self.names))
        if self.tables == "other_lines":
            numbers = {file.path: number for number, file in enumerate(batch)}
            rows = other_lines(folder, batch).iter_rows()
            return _lines(batch, "other_lines", ((numbers[path], text) for path, text in rows))
        with uncollected():
            reading = read_logged(
                folder,
                folder,
                batch,
                for_digest=self.tables in ("digest", "paths"),
                with_extra=self.with_extra,
            )
            return reading.files, self.make(reading)

    def _write_records(self, target: SafeFolder, reading: Reading) -> pl.DataFrame:
        first = reading.files[0].path if reading.files else ""
        folder = target / self.folders.get(first, quote(first, safe=""))
        return write_records(folder, reading)

    def empty(self) -> pl.DataFrame:
        """Return the table without rows, as of no files."""
        return self.make(Reading())[self.tables]

    def make(self, reading: Reading) -> Tables:
        """Return the tables of files that were read."""
        if self.tables == "digest":
            return digest_records(reading.records).tables()
        if self.tables == "times":
            return {"times": event_times(reading.records, self.names)}
        if self.tables == "fields":
            records = reading.records
            return {"fields": field_sums(records.with_columns(attempts_of(records)), self.names)}
        if self.tables == "paths":
            return {"paths": path_sums(reading.records)}
        if self.tables == "records":
            to = self.target
            return {"records": record_rows(reading) if to is None else self._write_records(to, reading)}
        return {"events": event_rows(reading.records)}


def _marked(folder: Path, batch: Sequence[File], names: Sequence[str]) -> Iterator[tuple[int, bytes]]:
    marks = as_marks(names)
    for number, file in enumerate(batch):
        for chunk in readable_lines(folder / file.path):
            if text := marked_lines(chunk, marks):
                yield number, text


def _lines(batch: Sequence[File], name: str, lines: Iterable[tuple[int, bytes]]) -> BatchResult:
    table = pl.DataFrame(list(lines), schema={"source": pl.Int64, "text": pl.Binary}, orient="row")
    # One "run" a file, so that `source` numbers files.
    return [File(file.path, file.size, file.mtime_ns, [None], [0], inode=file.inode) for file in batch], {
        name: table
    }
