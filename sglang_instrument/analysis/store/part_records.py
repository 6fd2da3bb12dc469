"""Keep all that log files hold in a part, and read its records: as columns, or one by one.

Beside `records.parquet`, with columns of `COLUMNS_OF_RECORDS`, stands `lines.parquet` with the lines that
are no records, as they are: control records, records without a time, torn lines and those of others. Rows of
a file are in the order of its lines. A part whose log is gone is data: a column that it lacks is null.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import msgspec
import polars as pl

from sglang_instrument.analysis.digests.parquet import damage_named, save_parquet, scan_table
from sglang_instrument.analysis.reading.all_fields import STAMPS, TEXT_COLUMNS, timestamps
from sglang_instrument.analysis.reading.chunks import as_marks, lines_between, marked_lines
from sglang_instrument.analysis.reading.columns import NOT_IN_DIGEST, Columns
from sglang_instrument.analysis.reading.files import File, Range
from sglang_instrument.analysis.reading.last_open import unended_lines
from sglang_instrument.analysis.reading.reader import COLUMNS, Reading, Source
from sglang_instrument.analysis.reading.records.lines import NO_EXTRA, Line, Rejects, decode
from sglang_instrument.analysis.reading.times import epoch_us
from sglang_instrument.analysis.store.packing import PACKED, unpacked
from sglang_instrument.analysis.store.records import COLUMNS_OF_RECORDS, RECORDS, rows_as_read, save_records
from sglang_instrument.errors import LogError
from sglang_instrument.safe_files.folder import SafeFolder
from sglang_instrument.schema import CONTROL_EVENTS, OPEN_NOW

#: The table of lines that are no records, and its columns.
LINES: Final = "lines"
OTHER_LINES: Final = {"file": pl.String, "text": pl.Binary}
_LEVEL: Final = 12  # of zstd: what is kept is written once
_SOURCE: Final[dict[str, Any]] = {"file": pl.String, "run_id": pl.String, "source": pl.Int64}
_WHOLE: Final[dict[str, Any]] = {**COLUMNS, **TEXT_COLUMNS, **STAMPS}
_OF_DIGEST: Final = {name: kind for name, kind in COLUMNS.items() if name not in NOT_IN_DIGEST}
_OF_LINE: Final = (
    timestamps(),
    *map(pl.col, ("event", "duration_sec", "extra", "worker", "step")),
    pl.when("exact").then("start_us").alias("start_us"),
    *map(pl.col, ("task", "spawned_by", "active_sec", "device_sec", "error")),
    pl.when("validate").then("validate").alias("validate"),
    pl.col("phase"),
)


def keep_all(target: SafeFolder, folder: Path, reading: Reading) -> None:
    """Write all that log files hold into the folder of a part, and read it again; not how spans are nested.

    Args:
        target: The folder of the part.
        folder: The run's.
        reading: Log files of it, read with `with_extra`.

    Raises:
        OSError, polars.exceptions.PolarsError, LogError: It cannot be written, or tells less than the files.
    """
    save_records(target, rows_as_read(reading), sync=True, level=_LEVEL)
    lines = other_lines(folder, reading.files)
    save_lines(target, lines, sync=True)
    again = read_part_records(target.path, reading.files, with_extra=True)
    first, second = (
        _as_texts(read.records.select(list(_WHOLE)).drop("position")) for read in (reading, again)
    )
    if not (first.equals(second) and lines.equals(_table(target.path, LINES).collect())):
        raise OSError(f"{target.path} would not tell what the log files tell")


def _as_texts(records: pl.DataFrame) -> pl.DataFrame:
    return records.with_columns(pl.col(pl.Categorical, pl.Enum).cast(pl.String))


def save_lines(target: SafeFolder, lines: pl.DataFrame, sync: bool = False) -> None:
    """Write the lines that are no records into the folder of a part.

    Raises:
        OSError, polars.exceptions.PolarsError: They cannot be written.
    """
    save_parquet(target, f"{LINES}.parquet", lines, sync=sync)


def other_lines(home: Path, files: Sequence[File]) -> pl.DataFrame:
    """Return the lines of files that are no records, with the `file` of each, as they were read.

    Raises:
        OSError, LogError: A file, or the part that holds its lines, cannot be read.
    """
    lines: list[tuple[str, bytes]] = []
    for file in files:
        if file.part is None:
            lines += ((file.path, text) for text in _lines_of(home / file.path, file))
    table = pl.DataFrame(lines, schema=OTHER_LINES, orient="row")
    in_parts = [_lines_in(home / part, some) for part, some in by_part(files).items()]
    return pl.concat([table, *in_parts])


def by_part(files: Sequence[File]) -> dict[str, list[File]]:
    """Return the files whose records parts hold, by part."""
    parts: dict[str, list[File]] = {}
    for file in files:
        if file.part is not None:
            parts.setdefault(file.part, []).append(file)
    return parts


def _lines_in(folder: Path, files: Sequence[File]) -> pl.DataFrame:
    with _readable(folder):
        return _table(folder, LINES).filter(pl.col("file").is_in([file.path for file in files])).collect()


def _lines_of(path: Path, file: File) -> list[bytes]:
    """Return the lines of a log file that are no records."""
    lines: list[bytes] = []
    rejects = Rejects(lines=lines)
    marks = as_marks(CONTROL_EVENTS)
    bounds = file.range or Range()
    for chunk in lines_between(path, bounds.begin, bounds.end):
        events = {line.event for line in decode(chunk, rejects)}
        if not events.isdisjoint(CONTROL_EVENTS):
            lines += filter(_is_control, marked_lines(chunk, marks).split(b"\n"))
    if file.foreign > rejects.foreign:
        for chunk in lines_between(path, bounds.begin, bounds.end):
            lines += filter(_is_timeless, chunk.split(b"\n"))
    return lines


def _is_control(raw: bytes) -> bool:
    return any(line.event in CONTROL_EVENTS for line in decode(raw, Rejects()))


def _is_timeless(raw: bytes) -> bool:
    lines = [line for line in decode(raw, Rejects()) if line.event not in CONTROL_EVENTS]
    return any(line.start_us is None and epoch_us(line.timestamp) is None for line in lines)


def read_part_records(
    folder: Path, files: Sequence[File], for_digest: bool = False, with_extra: bool = False
) -> Reading:
    """Return the records of log files from the part that holds them, as `read_files` does from the files.

    For a digest, what was open when a process ended is among them.

    Raises:
        LogError: The part cannot be read.
    """
    sources = [
        Source(place, number, run_id)
        for number, file in enumerate(files)
        if (place := file.place) is not None
        for run_id in file.runs
    ]
    with _readable(folder):
        kinds = _WHOLE if with_extra else _OF_DIGEST if for_digest else COLUMNS
        records = _records(folder, files, sources, kinds)
    unended = _unended(files, sources) if for_digest else []
    return Reading(list(files), sources, [records, *unended])


def _unended(files: Sequence[File], sources: Sequence[Source]) -> list[pl.DataFrame]:
    """Return records of what the last reports of processes that ended name: their files keep no others."""
    columns = Columns(for_digest=True)
    for number, source in enumerate(sources):
        for control in files[source.file].controls:
            if control.event == OPEN_NOW and control.run_id == source.run_id:
                lines = unended_lines(control.extra, control.time_us)
                for line in lines:
                    line.workid, line.step = source.place.worker, source.place.step
                    line.validate = source.place.validate or None
                if lines:
                    columns.add(lines, number)
    places = [source.place for source in sources]
    return [columns.table(places, 0).drop("local")] if len(columns) else []


@contextmanager
def _readable(folder: Path) -> Iterator[None]:
    try:
        with damage_named(folder):
            yield
    except (OSError, ValueError, pl.exceptions.PolarsError) as error:
        raise LogError(f"{folder}: its records cannot be read: {error}") from None


def is_nested(folder: Path) -> bool:
    """Return whether the records of a part tell how their spans are nested, by the names of today.

    Raises:
        LogError: They cannot be read.
    """
    with _readable(folder):
        return "steps_sec" in _table(folder, RECORDS).collect_schema().names()


def copy_records(target: SafeFolder, folder: Path, files: Sequence[File]) -> None:
    """Write the records that a part holds of some files, whole, into the folder of a dataset's part.

    Raises:
        LogError: They cannot be read.
        OSError, polars.exceptions.PolarsError: They cannot be written.
    """
    save_records(target, stored_rows(folder, [file.path for file in files]), whole=True)


def stored_rows(folder: Path, paths: Sequence[str] | None = None) -> pl.DataFrame:
    """Return the records that a part holds of some files, of all (None), with `COLUMNS_OF_RECORDS`.

    Raises:
        LogError: They cannot be read.
    """
    with _readable(folder):
        rows = _rows_of(folder) if paths is None else _rows_of(folder).filter(pl.col("file").is_in(paths))
        return rows.select(list(COLUMNS_OF_RECORDS)).collect()


def _records(
    folder: Path, files: Sequence[File], sources: Sequence[Source], kinds: Mapping[str, Any]
) -> pl.DataFrame:
    numbers = [(files[source.file].path, source.run_id, number) for number, source in enumerate(sources)]
    of_files = pl.DataFrame(numbers, schema=_SOURCE, orient="row")
    paths = of_files["file"].unique().to_list()
    rows = _rows_of(folder).filter(pl.col("file").is_in(paths)).with_row_index("position")
    rows = rows.join(of_files.lazy(), on=["file", "run_id"], nulls_equal=True, maintain_order="left")
    records = rows.select(pl.col(name).cast(kind) for name, kind in kinds.items()).collect()
    in_order = records["source"].is_sorted()
    return records if in_order else records.sort("source", maintain_order=True)


def _rows_of(folder: Path) -> pl.LazyFrame:
    """Return the records of a part as whole ones; a column that the part lacks is null."""
    rows = _table(folder, RECORDS)
    present = rows.collect_schema().names()
    kinds = {**COLUMNS_OF_RECORDS, **PACKED}
    stored = (pl.col(name) if name in present else pl.lit(None).alias(name) for name in kinds)
    typed = (column.cast(kind) for column, kind in zip(stored, kinds.values(), strict=True))
    return unpacked(rows.select(typed), present)


def _table(folder: Path, name: str) -> pl.LazyFrame:
    return scan_table(folder / f"{name}.parquet")


class KeptRecords:
    """The records that parts hold of log files, read when the first file of a part is asked for.

    Args:
        home: The folder that the paths of parts begin in.
        files: The files that will be asked for, each once.
        events: Only records of these events.
        keys: Beside those, records that hold one of these keys. Without events and keys, all records.
    """

    def __init__(
        self, home: Path, files: Sequence[File], events: Collection[str] = (), keys: Collection[str] = ()
    ) -> None:
        self._home = home
        self._files = by_part(files)
        self._marks = as_marks((*events, *keys))
        holds_key = pl.col("extra").str.contains_any([f'"{key}"' for key in keys])
        of_events = pl.col("event").is_in(list(events))
        self._wanted = of_events | holds_key if keys else of_events if events else pl.lit(value=True)
        self._rows: dict[str, pl.DataFrame] = {}
        self._lines: dict[str, bytes] = {}

    def records_of(self, file: File) -> Iterator[tuple[str | None, Line]]:
        """Yield the records of a file, each with the run that wrote it.

        Raises:
            LogError: The part cannot be read.
        """
        self._read_part(file)
        rows = self._rows.pop(file.path, None)
        if rows is not None:
            for run_id, timestamp, event, duration_sec, extra, *others in rows.iter_rows():
                fields = NO_EXTRA if extra is None else msgspec.Raw(extra.encode())
                yield run_id, Line(timestamp, event, duration_sec, fields, *others)

    def lines_of(self, file: File) -> bytes:
        """Return the lines of a file that are no records; with events or keys, those that name one."""
        self._read_part(file)
        text = self._lines.pop(file.path, b"")
        return marked_lines(text, self._marks) if self._marks else text

    def _read_part(self, file: File) -> None:
        """Read the part of a file, unless that was done."""
        files = self._files.pop(file.part or "", None)
        if files is None or file.part is None:
            return
        folder = self._home / file.part
        lines = _lines_in(folder, files)
        with _readable(folder):
            rows = _rows_of(folder).filter(pl.col("file").is_in([file.path for file in files]), self._wanted)
            by_file = rows.select("file", "run_id", *_OF_LINE).collect().partition_by("file", as_dict=True)
        self._rows |= {str(path): table.drop("file") for (path,), table in by_file.items()}
        for path, text in lines.iter_rows():
            self._lines[path] = self._lines.get(path, b"") + text + b"\n"
