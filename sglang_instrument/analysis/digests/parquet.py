"""Write Parquet files, with the system's own error where a disk is full, and read them."""

import errno
import os
from pathlib import Path
from typing import BinaryIO, Final

import polars as pl

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
        OSError, ValueError, polars.exceptions.PolarsError: It cannot be read, or is damaged.
    """
    demand_regular(path)
    try:
        return pl.read_parquet(path, glob=False)
    except pl.exceptions.PanicException as damage:  # no Exception: polars panics at some damages
        raise ValueError(f"{path} is damaged: {damage}") from None
