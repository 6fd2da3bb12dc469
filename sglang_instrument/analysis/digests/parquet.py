"""Write Parquet files, with the system's own error where a disk is full, and read them within bounds.

Whoever can write to a folder of logs can put any file there: `parquet_bounds` looks at it before polars does.
"""

import errno
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import lru_cache
from pathlib import Path
from typing import Any, BinaryIO, Final

import polars as pl

from sglang_instrument.analysis.digests.parquet_bounds import demand_bounded, most_bytes
from sglang_instrument.regular_files import demand_regular
from sglang_instrument.safe_files.folder import SafeFolder

_LEAST_FREE_BYTES: Final = 2**16


def save_parquet(
    folder: SafeFolder, name: str, table: pl.DataFrame, sync: bool = False, level: int | None = None
) -> None:
    """Write a table to a file of a folder, or replace it once the new one is whole.

    Args:
        folder: The folder.
        name: The name of the file.
        table: The table.
        sync: Whether to wait until it is on the disk.
        level: How hard zstd shall try.

    Raises:
        OSError: It cannot be written: the disk is full, for example.
        polars.exceptions.PolarsError: It cannot be written for another reason.
    """
    with folder.writing(name, sync) as file:
        write_parquet(table, file, level)


def write_parquet(table: pl.DataFrame, file: BinaryIO, level: int | None = None) -> None:
    """Write a table to a file.

    Raises:
        OSError: The disk is full, of which polars may only say "Invalid thrift: transport error".
        polars.exceptions.PolarsError: It cannot be written for another reason.
    """
    try:
        table.write_parquet(file, compression_level=level)
    except pl.exceptions.PolarsError as error:
        about = os.fstatvfs(file.fileno())
        if about.f_bavail * about.f_frsize < _LEAST_FREE_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)) from error
        raise


def read_table(path: Path) -> pl.DataFrame:
    """Return a table from a regular file.

    Raises:
        OSError, ValueError, polars.exceptions.PolarsError: It cannot be read, is damaged, or would take more
            memory than its bytes account for.
    """
    return read_tables([path])[0]


def read_tables(paths: Sequence[Path]) -> list[pl.DataFrame]:
    """Return the tables of some files in less time than one by one.

    Raises:
        OSError, ValueError, polars.exceptions.PolarsError: As `read_table`, for any of them.
    """
    for path in paths:
        demand_regular(path)
    have_few_texts = [demand_bounded(path) for path in paths]
    if not paths:
        return []
    with damage_named(Path(os.path.commonpath(paths))):
        tables = pl.collect_all([pl.scan_parquet(path, glob=False) for path in paths])
        for path, table, has_few_texts in zip(paths, tables, have_few_texts, strict=True):
            if not has_few_texts:  # no row has become a Python object yet, so that they share theirs
                _demand_few_texts(path, _bytes_of_texts(table.lazy()))
    return tables


def scan_table(path: Path, **options: Any) -> pl.LazyFrame:
    """Return a table of a regular file, to be read within `damage_named`.

    Args:
        path: The file.
        options: Of `polars.scan_parquet`.

    Raises:
        OSError, ValueError, polars.exceptions.PolarsError: As `read_table`.
    """
    demand_bounded_table(path)
    return pl.scan_parquet(path, glob=False, **options)


def demand_bounded_table(path: Path) -> None:
    """Raise unless reading a file takes memory in proportion to its bytes, with its texts written out.

    Raises:
        OSError, ValueError, polars.exceptions.PolarsError: As `read_table`.
    """
    demand_regular(path)
    if demand_bounded(path):
        return
    about = path.stat()
    with damage_named(path):
        texts = _text_bytes(path, about.st_ino, about.st_mtime_ns, about.st_size)
    _demand_few_texts(path, texts)


def _demand_few_texts(path: Path, texts: int) -> None:
    if texts > most_bytes(path):
        raise ValueError(f"{path}: its {path.stat().st_size:,} bytes repeat texts to {texts:,} bytes")


@lru_cache(maxsize=4096)
def _text_bytes(path: Path, inode: int, mtime_ns: int, size: int) -> int:
    """Return how many bytes all texts of a file have; the other arguments tell that it has not changed."""
    return _bytes_of_texts(pl.scan_parquet(path, glob=False, hive_partitioning=False))


def _bytes_of_texts(table: pl.LazyFrame) -> int:
    lengths = table.select(
        pl.col(pl.String).str.len_bytes().cast(pl.Int64).sum(),
        pl.col(pl.Binary).bin.size().cast(pl.Int64).sum(),
    )
    return sum(of_column.item() for of_column in lengths.collect())


@contextmanager
def damage_named(path: Path) -> Iterator[None]:
    """Make an error of polars' panic at a damaged file, which is no Exception.

    Raises:
        ValueError: polars panics.
    """
    try:
        yield
    except pl.exceptions.PanicException as damage:
        raise ValueError(f"{path} is damaged: {damage}") from None
