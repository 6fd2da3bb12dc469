"""Write a digest and the files that it was made from to a folder, and read them."""

import os
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
import polars as pl

from sglang_instrument.analysis.digests.digest import SCHEMAS, Digest
from sglang_instrument.analysis.digests.parquet import save_parquet
from sglang_instrument.analysis.reading.files import File
from sglang_instrument.regular_files import demand_regular, read_regular
from sglang_instrument.safe_files.folder import SafeFolder
from sglang_instrument.schema import LOG_VERSION

# Of the stored tables; raise it when their columns or their meaning change. A cache is then made again. What
# `prune` stored is not: its log is gone, so `pruned.py` must convert it.
_LAYOUT: Final = 17
_MOST_BYTES: Final = 2**30  # largest manifest that we read; a million files make half of it
VERSION: Final = f"log {LOG_VERSION}, layout {_LAYOUT}"
_MANIFEST: Final = "digest.json"
# Layouts that lack only columns and tables: null and empty say the same of their logs.
_SMALLER: Final = frozenset(f"log {LOG_VERSION}, layout {number}" for number in (11, 12, 13, 14, 15, 16))


class _DigestManifest(msgspec.Struct):
    """The index of a stored digest: its files; `token` is part of the names of its tables."""

    version: str
    token: str
    files: list[File]


class _DigestedFile(msgspec.Struct):
    """As much of a `File` as tells where it was and how large."""

    path: str
    size: int


class _DigestedFiles(msgspec.Struct):
    """As much of a `_DigestManifest` as tells which files it is of."""

    files: list[_DigestedFile]


def stored_files(home: Path) -> list[tuple[str, int]]:
    """Return path and size of the files whose digest is in a folder.

    Raises:
        OSError, msgspec.MsgspecError: It holds no whole digest.
    """
    manifest = msgspec.json.decode(read_regular(home / _MANIFEST, _MOST_BYTES), type=_DigestedFiles)
    return [(file.path, file.size) for file in manifest.files]


def load_digest(home: Path, smaller: bool = False) -> tuple[list[File], Digest]:
    """Return what a folder holds.

    Args:
        home: The folder.
        smaller: Whether to take a layout that lacks columns and tables of today's, which are then empty.

    Raises:
        OSError, msgspec.MsgspecError, pl.exceptions.PolarsError: It holds no whole digest.
        ValueError: It holds one of another version.
    """
    manifest = msgspec.json.decode(read_regular(home / _MANIFEST, _MOST_BYTES), type=_DigestManifest)
    lacking = smaller and manifest.version in _SMALLER
    if manifest.version != VERSION and not lacking:
        raise ValueError(f"written as {manifest.version}, this version reads {VERSION}")
    paths = {name: home / f"{name}-{manifest.token}.parquet" for name in SCHEMAS}
    if lacking:
        return manifest.files, Digest(
            **{
                name: fitted_table(name, read_table(path) if path.exists() else None)
                for name, path in paths.items()
            }
        )
    tables = {name: read_table(path) for name, path in paths.items()}
    if any(dict(table.schema) != SCHEMAS[name] for name, table in tables.items()):
        raise ValueError("its tables have other columns")
    return manifest.files, Digest(**tables)


def fitted_table(name: str, stored: pl.DataFrame | None) -> pl.DataFrame:
    """Return a table of another layout with the columns of today's; None stands for one that was not kept."""
    stored = pl.DataFrame(schema=SCHEMAS[name]) if stored is None else stored
    return stored.select(
        (pl.col(column) if column in stored.columns else _lacking(column)).cast(kind)
        for column, kind in SCHEMAS[name].items()
    )


def _lacking(column: str) -> pl.Expr:
    """Return a column that an older layout lacks.

    A phase that it did not know took no time of its own; it had one row for all requests of an id.
    """
    zero = 0.0 if column.startswith("wall_") else 0 if column == "attempt" else None
    return pl.lit(zero).alias(column)


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


def save_digest(home: SafeFolder, files: Sequence[File], digest: Digest, sync: bool = False) -> None:
    """Write the tables under new names, then the manifest that names them, then delete the old tables.

    Args:
        home: The folder.
        files: The files.
        digest: Their digest.
        sync: Whether to wait until they are on the disk.
    """
    token = os.urandom(6).hex()
    for name, table in digest.tables().items():
        save_parquet(home, f"{name}-{token}.parquet", table, sync)
    home.write(_MANIFEST, msgspec.json.encode(_DigestManifest(VERSION, token, list(files))), sync)
    for name in SCHEMAS:
        _forget_others(home, name, token)
    home.delete_drafts()


def save_table(home: SafeFolder, name: str, token: str, table: pl.DataFrame) -> None:
    """Write a table, then delete those of its name with other tokens."""
    save_parquet(home, f"{name}-{token}.parquet", table)
    _forget_others(home, name, token)


def _forget_others(home: SafeFolder, name: str, token: str) -> None:
    ours = re.compile(rf"{re.escape(name)}-[0-9a-f]{{12}}\.parquet")
    home.delete_those(
        lambda file_name: ours.fullmatch(file_name) is not None and file_name != f"{name}-{token}.parquet"
    )
