"""Keep all that log files hold as Parquet, and write the files again from it: for logs that `prune` deletes.

Records are rows of `records.parquet`, with the columns that a line is made of. Lines that are none, control
records, torn lines and those of others, stand in `lines.parquet` as they are. Each has the number of its
line. `stamp` is a timestamp that is not the end of its record in UTC.
"""

import json
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import msgspec
import orjson
import polars as pl

from sglang_instrument.analysis.digests.parquet import save_parquet
from sglang_instrument.analysis.reading.all_fields import with_texts
from sglang_instrument.analysis.reading.chunks import open_log, whole_lines
from sglang_instrument.analysis.reading.files import File
from sglang_instrument.analysis.reading.reader import Reading, read_files
from sglang_instrument.analysis.reading.records.lines import Rejects, decode_whole
from sglang_instrument.analysis.store.records import with_files
from sglang_instrument.regular_files import demand_regular
from sglang_instrument.safe_files.folder import SafeFolder
from sglang_instrument.schema import CONTROL_EVENTS, kind_of

KEPT_RECORDS: Final = "records.parquet"
KEPT_LINES: Final = "lines.parquet"
_LEVEL: Final = 12  # of zstd: what is kept is written once
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=timezone.utc)
_LINES: Final = {"file": pl.String, "line": pl.Int64, "text": pl.Binary}
#: Keys of a line, in their order, and the columns that hold them.
_KEYS: Final = {
    "duration_sec": "duration_sec",
    "extra": "extra",
    "workid": "worker",
    "step": "step",
    "start_us": "start_us",
    "task": "task",
    "spawned_by": "spawned_by",
    "active_sec": "active_sec",
    "device_sec": "device_sec",
    "error": "error",
}
#: The columns of `records.parquet`, with `line` and `stamp`.
_KEPT: Final = ("file", "event", "phase", "validate", "exact", *_KEYS.values(), "other_keys")
_TYPES: Final[dict[Any, Any]] = {pl.Categorical: pl.String}


def keep_files(target: SafeFolder, folder: Path, files: Sequence[File]) -> None:
    """Write all that log files hold into a folder, and make sure that it can be read as they are.

    Args:
        target: The new folder.
        folder: The run's.
        files: Log files of it.

    Raises:
        OSError, polars.exceptions.PolarsError: It cannot be written, or tells less than the files.
    """
    reading = read_files(folder, files, with_extra=True)
    records, others = _kept_tables(folder, reading)
    save_parquet(target, KEPT_RECORDS, records, sync=True, level=_LEVEL)
    save_parquet(target, KEPT_LINES, others, sync=True, level=_LEVEL)
    with TemporaryDirectory() as scratch:
        restore_files(target.path, [file.path for file in files], SafeFolder(Path(scratch)))
        again = read_files(Path(scratch), files, with_extra=True)
    if not _are_alike(reading, again):
        raise OSError(f"{target.path} would not tell what the log files tell")


def _are_alike(reading: Reading, again: Reading) -> bool:
    first, second = (
        [
            (file.path, file.runs, file.records, file.controls, file.torn, file.foreign, file.unreadable)
            for file in of.files
        ]
        for of in (reading, again)
    )
    categories = pl.col(pl.Categorical, pl.Enum).cast(pl.String)
    return first == second and again.records.with_columns(categories).equals(
        reading.records.with_columns(categories)
    )


def _kept_tables(folder: Path, reading: Reading) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the records of files with `line` and `stamp`, and the lines that are no records."""
    rows = with_files(with_texts(reading.records), reading).sort("position")
    present = set(rows["position"].to_list())
    numbers: dict[int, tuple[int, str]] = {}
    others: list[tuple[str, int, bytes]] = []
    position = 0
    for file in reading.files:
        for number, (raw, stamp) in enumerate(_stamped_lines(folder / file.path)):
            if stamp is None or position not in present:
                others.append((file.path, number, raw))
            else:
                numbers[position] = (number, stamp)
            position += stamp is not None
    ends = rows["start_us"] + _span_us(rows)
    lines_and_stamps = [numbers[number] for number in rows["position"]]
    stamps = [
        None if stamp == _in_utc(end_us) else stamp
        for (_, stamp), end_us in zip(lines_and_stamps, ends, strict=True)
    ]
    rows = (
        rows.select(_KEPT)
        .cast(_TYPES)
        .with_columns(
            line=pl.Series([number for number, _ in lines_and_stamps], dtype=pl.Int64),
            stamp=pl.Series(stamps, dtype=pl.String),
        )
    )
    return rows, pl.DataFrame(others, schema=_LINES, orient="row")


class _Stamped(msgspec.Struct, gc=False):
    timestamp: str
    event: str


_STAMPED: Final = msgspec.json.Decoder(_Stamped)


def _stamped_lines(path: Path) -> Iterator[tuple[bytes, str | None]]:
    """Yield the lines of a log file, each with its timestamp: None of a control record, and of no record."""
    rejects = Rejects()
    with open_log(path) as stream:
        for chunk in whole_lines(stream):
            for raw in filter(bytes.strip, chunk.split(b"\n")):
                records = [line for line in decode_whole(raw, rejects) if line.event not in CONTROL_EVENTS]
                yield raw, records[0].timestamp if records else None


def _span_us(rows: pl.DataFrame) -> pl.Series:
    return rows.select((pl.col("duration_sec").fill_null(0.0) * 1e6).cast(pl.Int64)).to_series()


def _in_utc(time_us: int) -> str:
    return (_EPOCH + timedelta(microseconds=time_us)).isoformat(timespec="microseconds")


def restore_files(kept_folder: Path, paths: Collection[str], target: SafeFolder) -> None:
    """Write log files again, below `target`, from the folder that keeps all that they hold.

    Raises:
        OSError, polars.exceptions.PolarsError: What is kept cannot be read, or the files cannot be written.
    """
    records, lines = (_of_files(kept_folder / name, paths) for name in (KEPT_RECORDS, KEPT_LINES))
    texts: dict[str, list[tuple[int, bytes]]] = {path: [] for path in paths}
    for path, number, text in lines.select("file", "line", "text").iter_rows():
        texts[path].append((number, text))
    for row in records.with_columns(end_us=pl.col("start_us") + _span_us(records)).iter_rows(named=True):
        texts[row["file"]].append((row["line"], _line_of(row)))
    for path, numbered in texts.items():
        content = b"".join(text + b"\n" for _, text in sorted(numbered))
        folder, name = target.split(path)
        folder.write(name, _compressed(content) if path.endswith(".zst") else content)


def _of_files(path: Path, files: Collection[str]) -> pl.DataFrame:
    demand_regular(path)
    return pl.scan_parquet(path, glob=False).filter(pl.col("file").is_in(list(files))).collect()


def _line_of(row: dict[str, Any]) -> bytes:
    """Return the line of a record: a reader takes it for the one that was written."""
    line: dict[str, Any] = {"timestamp": row["stamp"] or _in_utc(row["end_us"]), "event": row["event"]}
    line |= {key: row[column] for key, column in _KEYS.items() if row[column] is not None}
    if row["extra"] is not None:
        line["extra"] = orjson.Fragment(row["extra"])
    if not row["exact"]:
        line.pop("start_us")
    if row["validate"]:
        line["validate"] = True
    if row["phase"] != kind_of(row["event"]).phase:
        line["phase"] = row["phase"]
    if row["other_keys"] is None:
        return orjson.dumps(line)
    others = json.loads(row["other_keys"])
    known = orjson.dumps({key: value for key, value in line.items() if key not in others})
    other_keys: str = row["other_keys"]
    return known[:-1] + b", " + other_keys.encode()[1:]


def _compressed(content: bytes) -> bytes:
    import zstandard  # the reader of such a file needs it, too

    return zstandard.ZstdCompressor().compress(content)


@contextmanager
def with_restored(folder: Path, files: Sequence[File]) -> Iterator[Path]:
    """Have a folder for a block in which all of these files can be read, the deleted ones, too.

    Args:
        folder: The run's folder.
        files: Log files of it; `part` says where one is kept that was deleted.
    """
    if all(file.part is None for file in files):
        yield folder
        return
    with TemporaryDirectory() as scratch:
        gather_files(folder, files, Path(scratch))
        yield Path(scratch)


def gather_files(folder: Path, files: Sequence[File], scratch: Path) -> None:
    """Put files of a run into another folder: the deleted ones restored, links to the others.

    A file that cannot be restored stays missing; its reader says so.
    """
    deleted: dict[str, list[str]] = {}
    for file in files:
        target = scratch / file.path
        if target.exists() or target.is_symlink():
            continue
        if file.part is None:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to((folder / file.path).absolute())
        else:
            deleted.setdefault(file.part, []).append(file.path)
    for part, paths in deleted.items():
        restore_files(folder / part, paths, SafeFolder(scratch))
