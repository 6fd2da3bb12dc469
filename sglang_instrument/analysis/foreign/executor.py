"""Answer for a foreign log as if its records lay in files of our own, one a step and worker."""

import shutil
import tempfile
import weakref
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import Any

import polars as pl

from sglang_instrument.analysis.executors.executor import BatchResult, Job, Progress
from sglang_instrument.analysis.foreign.our_lines import extra_texts, write_lines
from sglang_instrument.analysis.foreign.records.rows import ForeignLog, places_of
from sglang_instrument.analysis.foreign.registry import Format, find_format
from sglang_instrument.analysis.reading.columns import COLUMNS
from sglang_instrument.analysis.reading.files import File
from sglang_instrument.analysis.reading.reader import Reading, Source
from sglang_instrument.errors import LogError
from sglang_instrument.gc_pause import uncollected

_PLACE = ("role", "worker", "step", "validate")


class ForeignExecutor:
    """Reads a foreign log at once, and hands out its records by step and worker.

    Attributes:
        format: Its format.
    """

    is_far = False

    def __init__(self, path: Path, format_: Format, files: Sequence[Path], others: Sequence[Path]) -> None:
        """Prepare to read the files of a format at a path; `others` lie beside them."""
        self.folder = path
        self.format = format_
        self.lost: dict[str, list[str]] = {}
        self._own, self._others = files, others
        # What lies beside a foreign log is not of our run: neither its cache nor its processes.
        self.home = Path(tempfile.mkdtemp(prefix="sglang-instrument-"))
        weakref.finalize(self, shutil.rmtree, self.home, ignore_errors=True)

    @cached_property
    def log(self) -> ForeignLog:
        """The log, read.

        Raises:
            LogError: A file went away meanwhile.
        """
        try:
            with uncollected():
                return self.format.read(self._own)
        except OSError as error:
            raise LogError(f"{self.folder}: {error}") from None

    @cached_property
    def _places(self) -> pl.DataFrame:
        """A row for each of the files that we make of the log: `part` numbers them."""
        return places_of(self.log.rows).with_row_index("part")

    @cached_property
    def _rows(self) -> pl.DataFrame:
        """The rows of the log with the number of their file, file by file."""
        rows = self.log.rows.join(self._places, on=_PLACE, nulls_equal=True, maintain_order="left")
        return rows.sort("part", maintain_order=True)

    @cached_property
    def _paths(self) -> list[str]:
        """The path of each of these files, at its number."""
        return [_path_of(row) for row in self._places.iter_rows(named=True)]

    def list_files(self) -> list[File]:
        """Return a file for each step and worker of the log. They have no size: nothing of them is cached."""
        changed_ns = max((path.stat().st_mtime_ns for path in self._own if path.exists()), default=0)
        counts = self._rows["part"].rle().struct.field("len")
        files = [
            File(path, 0, changed_ns, [None], [count])
            for path, count in zip(self._paths, counts, strict=True)
        ]
        if files:
            files[0].torn, files[0].foreign = self.log.rejects.torn, self.log.rejects.foreign
            files[0].unfit = self.log.rejects.unfit
        return files

    def list_others(self) -> list[str]:
        """Return the files beside those of the format."""
        return [path.name for path in self._others]

    def read(self, files: Sequence[File], job: Job, progress: Progress | None = None) -> BatchResult:
        """Return the files, and the tables of the job."""
        listed = {file.path: file for file in self.list_files()}
        wanted = [listed[file.path] for file in files]
        reading = Reading(wanted)
        for number, file in enumerate(wanted):
            assert file.place is not None  # noqa: S101 - we named it
            reading.sources.append(Source(file.place, number, None))
        if wanted:
            parts = [self._paths.index(file.path) for file in wanted]
            reading.tables = [self._rows_of(parts, job.with_extra)]
        with uncollected():
            made = job.make(reading)
        if progress is not None:
            progress(len(files), len(files))
        return wanted, made

    def _rows_of(self, parts: Sequence[int], with_extra: bool) -> pl.DataFrame:
        """Return the records of some of our files, with their number in `parts` as `source`."""
        sources = pl.Series(range(len(parts)), dtype=pl.Int64)
        source = pl.col("part").replace_strict(pl.Series(parts), sources, default=None)
        rows = self._rows.with_columns(source=source).drop_nulls("source")
        rows = rows.with_columns(position=pl.int_range(pl.len(), dtype=pl.Int64))
        records = rows.select(list(COLUMNS))
        return records.with_columns(extra_texts(rows.drop("part"))) if with_extra else records

    def bring(self, files: Sequence[File]) -> Path:
        """Write these files in our own format, those that are not there yet, and return their folder."""
        for file in files:
            target = self.home / file.path
            if not target.exists():
                target.parent.mkdir(parents=True, exist_ok=True)
                of_file = pl.col("part") == self._paths.index(file.path)
                write_lines(target, self._rows.filter(of_file).drop("part"))
        return self.home


def foreign_executor(path: Path) -> ForeignExecutor | None:
    """Return what reads the foreign log at a path; None if there is none of a known format."""
    format_and_files = find_format(path)
    return None if format_and_files is None else ForeignExecutor(path, *format_and_files)


def _path_of(place: dict[str, Any]) -> str:
    """Return the path at which our own writer would have put the records of a place."""
    name = f"{place['role']}_{place['worker']}.jsonl"
    if place["step"] is None:
        return f"engine/{name}"
    return f"{'validate' if place['validate'] else 'step'}_{place['step']}/{name}"
