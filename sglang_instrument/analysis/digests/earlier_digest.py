"""Read a digest as earlier versions kept it: in `.pruned`, and in a dataset."""

from pathlib import Path
from typing import Final

import msgspec

from sglang_instrument.analysis.digests.digest import SCHEMAS, Digest, fitted_table
from sglang_instrument.analysis.digests.parquet import read_table
from sglang_instrument.analysis.reading.files import File
from sglang_instrument.regular_files import read_regular
from sglang_instrument.schema import LOG_VERSION

_MOST_BYTES: Final = 2**30  # largest manifest that we read; a million files make half of it
_MANIFEST: Final = "digest.json"
# They lack only columns and tables of today: null and empty say the same of their logs.
_VERSIONS: Final = frozenset(f"log {LOG_VERSION}, layout {number}" for number in range(11, 18))


class _DigestManifest(msgspec.Struct):
    """The index of a digest: its files; `token` is part of the names of its tables."""

    version: str
    token: str
    files: list[File]


class _ListedFile(msgspec.Struct):
    """As much of a `File` as tells where it was and how large."""

    path: str
    size: int


class _FileList(msgspec.Struct):
    """As much of a `_DigestManifest` as tells which files it is of."""

    files: list[_ListedFile]


def stored_files(home: Path) -> list[tuple[str, int]]:
    """Return path and size of the files whose digest is in a folder.

    Raises:
        OSError, msgspec.MsgspecError: It holds no whole digest.
    """
    manifest = msgspec.json.decode(read_regular(home / _MANIFEST, _MOST_BYTES), type=_FileList)
    return [(file.path, file.size) for file in manifest.files]


def load_digest(home: Path) -> tuple[list[File], Digest]:
    """Return what a folder holds; columns and tables that its version lacked are null and empty.

    Raises:
        OSError, msgspec.MsgspecError, pl.exceptions.PolarsError: It holds no whole digest.
        ValueError: It holds one of a version that is not known.
    """
    manifest = msgspec.json.decode(read_regular(home / _MANIFEST, _MOST_BYTES), type=_DigestManifest)
    if manifest.version not in _VERSIONS:
        raise ValueError(f"written as {manifest.version}, which this version does not read")
    paths = {name: home / f"{name}-{manifest.token}.parquet" for name in SCHEMAS}
    tables = {
        name: fitted_table(name, read_table(path) if path.exists() else None) for name, path in paths.items()
    }
    return manifest.files, Digest(**tables)
