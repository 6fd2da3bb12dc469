"""Write Parquet files, with the system's own error where a disk is full."""

import errno
import os
import shutil
from pathlib import Path
from typing import Final

import polars as pl

_LEAST_FREE_BYTES: Final = 2**16


def write_parquet(table: pl.DataFrame, path: Path) -> None:
    """Write a table to a file.

    Raises:
        OSError: The disk is full, of which polars may only say "Invalid thrift: transport error".
        polars.exceptions.PolarsError: It cannot be written for another reason.
    """
    try:
        table.write_parquet(path)
    except pl.exceptions.PolarsError as error:
        if shutil.disk_usage(path.parent).free < _LEAST_FREE_BYTES:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)) from error
        raise
