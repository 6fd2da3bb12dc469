"""Turn a dataset of an earlier version into parts: its digest, and its spans by run and step.

It is read as a file of others is: regular files alone, and no column has another type than it should. Records
lack what those versions did not write; lines that are no records are not there.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
import polars as pl

from sglang_instrument.analysis.digests.digest import Digest
from sglang_instrument.analysis.digests.earlier_digest import load_digest
from sglang_instrument.analysis.digests.file_sources import key_of, only_files
from sglang_instrument.analysis.digests.parquet import damage_named, scan_table
from sglang_instrument.analysis.reading.files import File
from sglang_instrument.analysis.store.descriptions import copy_descriptions
from sglang_instrument.analysis.store.part_records import other_lines, save_lines
from sglang_instrument.analysis.store.parts import (
    DAMAGED,
    PARTS,
    VERSION,
    Index,
    Part,
    fill_part,
    records_of,
    write_index,
)
from sglang_instrument.analysis.store.records import COLUMNS_OF_RECORDS, EARLIER_NAMES, save_records
from sglang_instrument.analysis.store.store import group_files
from sglang_instrument.errors import LogError
from sglang_instrument.safe_files.folder import SafeFolder

_DIGEST: Final = "_digest"
_SPANS: Final = "spans/run_id=*/step=*/*.parquet"
_PARTITIONS: Final[dict[str, Any]] = {"run_id": pl.String, "step": pl.Int64}


def is_earlier_dataset(folder: Path) -> bool:
    """Return whether a folder is a dataset of an earlier version."""
    return (folder / _DIGEST).is_dir()


def write_as_parts(folder: Path, target: SafeFolder) -> None:
    """Write what a dataset of an earlier version holds as one of this version.

    Args:
        folder: The dataset.
        target: An empty folder.

    Raises:
        LogError: The dataset is incomplete or damaged.
        OSError: The target cannot be written.
    """
    try:
        files, digest = load_digest(folder / _DIGEST)
        paths = sorted(folder.glob(_SPANS))
        parts = [
            _part(target, f"{number:016x}", group, only_files(digest, files, group), paths)
            for number, group in enumerate(group_files([file for file in files if file.place is not None]))
        ]
    except DAMAGED as error:
        raise LogError(f"{folder}: this dataset is incomplete; export the log again: {error}") from None
    write_index(target, Index(VERSION, parts))
    copy_descriptions(folder, target)


def _part(
    target: SafeFolder, name: str, files: Sequence[File], digest: Digest, paths: Sequence[Path]
) -> Part:
    folder = target / PARTS / name
    rows = _rows_of([file.path for file in files], paths)
    if len(rows):
        save_records(folder, rows)
        save_lines(folder, other_lines(folder.path, []))
    fill_part(folder, [msgspec.structs.replace(file, part=None) for file in files], digest.tables())
    return Part(name, list(map(key_of, files)), records_of(files))


def _rows_of(files: Sequence[str], paths: Sequence[Path]) -> pl.DataFrame:
    """Return the records of some files, in the order of their ends."""
    wanted = [pl.DataFrame(schema=COLUMNS_OF_RECORDS)]
    for path in paths:
        spans = scan_table(path, hive_partitioning=True, hive_schema=_PARTITIONS)
        with damage_named(path):
            rows = spans.filter(pl.col("file").is_in(files)).collect()
        rows = rows.rename(EARLIER_NAMES, strict=False)
        present = {name: kind for name, kind in COLUMNS_OF_RECORDS.items() if name in rows.columns}
        rows = rows.sort("end_us", "span", descending=[False, True])  # a child ends before its parent
        wanted.append(rows.select(pl.col(name).cast(kind) for name, kind in present.items()))
    table = pl.concat(wanted, how="diagonal")
    return _with_spawners(table).with_columns(exact=pl.lit(value=True)).select(list(COLUMNS_OF_RECORDS))


def _with_spawners(records: pl.DataFrame) -> pl.DataFrame:
    """Return records with the task that spawned theirs: that of the parent, where it is another task."""
    of_file = ("file", "run_id")
    spawners = records.drop_nulls("span").select(*of_file, parent="span", spawner="task")
    joined = records.join(
        spawners, on=[*of_file, "parent"], how="left", nulls_equal=True, maintain_order="left"
    )
    return joined.with_columns(spawned_by=pl.when("concurrent").then("spawner"))
