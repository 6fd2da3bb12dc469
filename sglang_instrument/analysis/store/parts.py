"""Write parts of a store, and read them: some log files each, and the tables that were made of them.

A part is a folder in `parts`: `files.json` with the log files as they were read, and a Parquet file for each
table that is not empty. `source` of a table numbers the pairs of file and run, in the order of `files.json`.
A part is written under another name and renamed when it is whole, and never changed afterwards. `index.json`
says which parts count, and of which state of which files each is.

The same folder is what `prune` keeps of the log files that it deletes. Such a part is data: it is read
whatever version wrote it, and what it lacks is null.
"""

import os
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeVar

import msgspec
import polars as pl

from sglang_instrument.analysis.digests.digest import SCHEMAS, Digest, fitted_table, with_texts
from sglang_instrument.analysis.digests.file_sources import Key, key_of
from sglang_instrument.analysis.digests.parquet import read_table, read_tables, save_parquet
from sglang_instrument.analysis.reading.files import File
from sglang_instrument.regular_files import read_regular
from sglang_instrument.safe_files.folder import SafeFolder, is_draft
from sglang_instrument.schema import LOG_VERSION

# Of all that a store holds; raise it when columns or their meaning change. It is then made again.
_LAYOUT: Final = 9
VERSION: Final = f"log {LOG_VERSION}, parts {_LAYOUT}"
PARTS: Final = "parts"
_INDEX: Final = "index.json"
FILES: Final = "files.json"
_MOST_BYTES: Final = 2**30  # of an index; a million files make a tenth of it
_NAME: Final = re.compile(r"(\.draft-)?[0-9a-f]{16}")
_IN_PART: Final = re.compile(r"files\.json|[a-z_]+\.parquet")
#: What cannot be read, or is of another version, raises one of these.
DAMAGED: Final = (OSError, ValueError, msgspec.MsgspecError, pl.exceptions.PolarsError)


class Part(msgspec.Struct, frozen=True):
    """An entry of the index.

    Attributes:
        name: Of the part's folder.
        files: The log files as they were: path, inode, size in bytes, modification time in nanoseconds.
        records: How many records they hold.
    """

    name: str
    files: list[Key]
    records: int


class HeldRange(msgspec.Struct, frozen=True):
    """An entry of the index: a part that holds some bytes of a log file outside of steps.

    Attributes:
        name: Of the part's folder.
        path: Of the file, below the run's folder.
        inode: Its number on the disk.
        begin: The first of these bytes.
        end: The first one after them; all lines between are whole.
        mtime_ns: When the file had been written to last.
        records: How many records they hold.
        check: A checksum of the last of these bytes: of another file in place of this one it is another.
    """

    name: str
    path: str
    inode: int
    begin: int
    end: int
    mtime_ns: int
    records: int
    check: str


class OtherLog(msgspec.Struct, frozen=True):
    """What is to be known of another project's log of which a dataset was made: see `ForeignLog`."""

    read_as: str
    cannot_show: list[str]
    tells_requests: bool
    workers_are_servers: bool


class Index(msgspec.Struct):
    """Which parts count. Of a dataset, `runs` are the launches, `other` tells of another project's log."""

    version: str
    parts: list[Part]
    runs: list[str] = []
    other: OtherLog | None = None
    ranges: list[HeldRange] = []

    @property
    def names(self) -> set[str]:
        """The names of the parts that count."""
        return {part.name for part in self.parts} | {held.name for held in self.ranges}


class _WrittenTables(msgspec.Struct):
    version: str
    tables: list[str]
    files: list[File]


class _Listed(msgspec.Struct):
    """As much of a `File` as tells where it was and how large."""

    path: str
    size: int


class _List(msgspec.Struct):
    """As much of `_WrittenTables` as tells which files they are of."""

    files: list[_Listed]


_Kind = TypeVar("_Kind")


def read_index(home: SafeFolder) -> Index:
    """Return the index of a store; without parts if it has none of this version."""
    try:
        index = msgspec.json.decode(read_regular(home.path / _INDEX, _MOST_BYTES), type=Index)
    except DAMAGED:
        return Index(VERSION, [])
    return index if index.version == VERSION else Index(VERSION, [])


def index_of(home: SafeFolder) -> Index:
    """Return an index, of any version.

    Raises:
        DAMAGED: It cannot be read, or names what no part is called.
    """
    index = msgspec.json.decode(read_regular(home.path / _INDEX, _MOST_BYTES), type=Index)
    if wrong := [name for name in index.names if not _NAME.fullmatch(name)]:
        raise ValueError(f"{home.path}: no part is called {wrong[0]!r}")
    return index


def is_dataset(folder: Path) -> bool:
    """Return whether a folder is a dataset: the parts of a run, without its log."""
    return (folder / _INDEX).is_file() and (folder / PARTS).is_dir()


def write_index(home: SafeFolder, index: Index) -> None:
    """Say which parts count, and delete the other ones; the caller holds the store's lock.

    Args:
        home: The store, or the dataset.
        index: The index, of this version.

    Raises:
        OSError: The index cannot be written.
    """
    home.write(_INDEX, msgspec.json.encode(index))
    counting = index.names
    for name in (home / PARTS).names():
        if name not in counting and _NAME.fullmatch(name):
            delete_part(home, name)
    home.delete_drafts(at_once=True)


def delete_part(home: SafeFolder, name: str) -> None:
    """Delete a part's folder; what is not ours in it stays."""
    folder = home / PARTS / name
    folder.delete_those(lambda file: is_draft(file) or _IN_PART.fullmatch(file) is not None)
    (home / PARTS).delete_folder(name)


def files_of(home: SafeFolder, part: Part) -> list[File]:
    """Return the log files of a part as they were read.

    Raises:
        DAMAGED: They cannot be read, or are not as the index says.
    """
    return _read_files(home, part).files


def _read_files(home: SafeFolder, part: Part) -> _WrittenTables:
    folder = home.path / PARTS / part.name
    stored = _decoded(folder, _WrittenTables)
    if stored.version != VERSION or list(map(key_of, stored.files)) != part.files:
        raise ValueError(f"{folder} is not as the index says")
    return stored


def write_part(home: SafeFolder, files: Sequence[File], tables: Mapping[str, pl.DataFrame]) -> Part:
    """Write a part; it counts when an index names it.

    Args:
        home: The store.
        files: The log files.
        tables: Tables made of them, by name.

    Raises:
        OSError, polars.exceptions.PolarsError: It cannot be written.
    """
    name, draft = new_part(home)
    fill_part(draft, files, tables)
    finish_part(home, name)
    return Part(name, list(map(key_of, files)), records_of(files))


def new_part(home: SafeFolder) -> tuple[str, SafeFolder]:
    """Return the name of a new part, and the folder of its draft."""
    name = os.urandom(8).hex()
    return name, home / PARTS / draft_of(name)


def draft_of(name: str) -> str:
    """Return the name of the folder of a part before it is whole."""
    return f".draft-{name}"


def finish_part(home: SafeFolder, name: str) -> None:
    """Give the folder of a part its name."""
    (home / PARTS).rename_folder(draft_of(name), name)


def fill_part(
    folder: SafeFolder, files: Sequence[File], tables: Mapping[str, pl.DataFrame], sync: bool = False
) -> None:
    """Write the files and tables of a part into its folder, the list of files last.

    Args:
        folder: The folder, under the name of a draft.
        files: The log files.
        tables: Tables made of them, by name.
        sync: Whether to wait until they are on the disk.

    Raises:
        OSError, polars.exceptions.PolarsError: They cannot be written.
    """
    filled = {table: rows for table, rows in tables.items() if len(rows)}
    for table, rows in filled.items():
        save_parquet(folder, f"{table}.parquet", with_texts(rows), sync)
    listed = [msgspec.structs.replace(file, range=None) for file in files]
    folder.write(FILES, msgspec.json.encode(_WrittenTables(VERSION, list(filled), listed)), sync)


def read_data(folder: Path) -> tuple[list[File], Digest]:
    """Return the log files and the digest of a part that is data.

    Raises:
        DAMAGED: It cannot be read.
    """
    stored = _decoded(folder, _WrittenTables)
    tables = {
        name: fitted_table(name, read_table(folder / f"{name}.parquet") if name in stored.tables else None)
        for name in SCHEMAS
    }
    return stored.files, Digest(**tables)


def written_files(folder: Path) -> tuple[str, list[File]]:
    """Return the version that wrote a part, and its log files.

    Raises:
        DAMAGED: They cannot be read.
    """
    stored = _decoded(folder, _WrittenTables)
    return stored.version, stored.files


def listed_files(folder: Path) -> list[tuple[str, int]]:
    """Return path and size of the files of a part.

    Raises:
        DAMAGED: It cannot be read.
    """
    return [(file.path, file.size) for file in _decoded(folder, _List).files]


def _decoded(folder: Path, kind: type[_Kind]) -> _Kind:
    return msgspec.json.decode(read_regular(folder / FILES, _MOST_BYTES), type=kind)


def read_part(home: SafeFolder, part: Part) -> tuple[list[File], Digest]:
    """Return the log files of a part, and their digest.

    Raises:
        DAMAGED: It cannot be read, or is not as the index says.
    """
    stored, folder = _read_files(home, part), home.path / PARTS / part.name
    names = [name for name in stored.tables if name in SCHEMAS]
    read = dict(zip(names, read_tables([folder / f"{name}.parquet" for name in names]), strict=True))
    tables = {
        name: read[name] if name in read else pl.DataFrame(schema=schema) for name, schema in SCHEMAS.items()
    }
    if any(_in_texts(table.schema) != _in_texts(SCHEMAS[name]) for name, table in tables.items()):
        raise ValueError(f"the tables of {folder} have other columns")
    return stored.files, Digest(**{name: _fitting(table, SCHEMAS[name]) for name, table in tables.items()})


def _fitting(table: pl.DataFrame, schema: Mapping[str, Any]) -> pl.DataFrame:
    if table.schema == schema:
        return table
    return table.select(pl.col(column).cast(kind) for column, kind in schema.items())


def _in_texts(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema as it is in a file, which holds categories as texts."""
    return {name: pl.String if kind == pl.Categorical else kind for name, kind in schema.items()}


def records_of(files: Sequence[File]) -> int:
    """Return how many records files hold."""
    return sum(sum(file.records) for file in files)
