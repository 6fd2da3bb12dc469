"""Bound what stores take in the user's cache, and delete stores: all that they hold can be made again."""

import re
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from sglang_instrument.analysis.store.homes import homes, locked, stores_in_user_cache, user_cache
from sglang_instrument.analysis.store.parts import PARTS, delete_part
from sglang_instrument.safe_files.folder import SafeFolder, is_draft

_MOST_BYTES: Final = 10 * 10**9
_OURS: Final = re.compile(r"index\.json|[a-z_]+-[0-9a-f]{12}\.parquet")


def bound_user_cache(last: SafeFolder) -> None:
    """Delete stores in the user's cache, the one written to longest ago first, until they take at most 10 GB.

    Args:
        last: The store that was written to just now: it stays. Outside of the cache, nothing is deleted.
    """
    if last.root != user_cache():
        return
    stores = {store: list(_files_in(store.path)) for store in stores_in_user_cache()}
    sizes = {store: sum(path.stat().st_size for path in paths) for store, paths in stores.items()}
    total = sum(sizes.values())
    for store in sorted(stores, key=lambda store: max(path.stat().st_mtime for path in stores[store])):
        if total <= _MOST_BYTES:
            return
        if store != last:
            with suppress(OSError), locked(store):
                empty_store(store)
                total -= sizes[store]


def delete_stores(folder: Path) -> int:
    """Delete the stores of a run; return how many bytes that were.

    Raises:
        BlockingIOError: Another process writes to one.
    """
    freed = 0
    for home in homes(folder):
        if not home.names():
            continue
        before = _bytes_in(home.path)
        with locked(home):
            empty_store(home)
        freed += before - _bytes_in(home.path)
    return freed


def empty_store(home: SafeFolder) -> None:
    """Delete what a store holds; the caller holds its lock."""
    home.delete_those(lambda name: is_draft(name) or _OURS.fullmatch(name) is not None)
    for name in (home / PARTS).names():
        delete_part(home, name)
    home.delete_folder(PARTS)


def _files_in(folder: Path) -> Iterator[Path]:
    return (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def _bytes_in(folder: Path) -> int:
    return sum(path.stat().st_size for path in _files_in(folder))
