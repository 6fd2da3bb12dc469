"""Say where the store of a run lies: beside a log that the user owns, else in the user's cache."""

import hashlib
import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from filelock import FileLock, Timeout

from sglang_instrument.analysis.reading.files import File
from sglang_instrument.safe_files.folder import SafeFolder

#: The name of a store's folder.
STORE: Final = ".store"
#: The folder of our stores in the user's cache; other things of ours lie there, too.
OURS: Final = "sglang-instrument"
_WORTHWHILE_BYTES: Final = 4 * 1024 * 1024
#: The name of the file that keeps processes apart.
LOCK: Final = "lock"
_HASHED: Final = re.compile(r"(ray-)?[0-9a-f]{16}")


def is_worthwhile(files: Sequence[File]) -> bool:
    """Return whether files are large enough for a store; smaller ones are read each time."""
    return sum(file.size for file in files) >= _WORTHWHILE_BYTES


def homes(folder: Path) -> list[SafeFolder]:
    """Return the folders in which the store of a run may lie, the best one first: none is a stranger's.

    Args:
        folder: The run's folder.
    """
    name = hashlib.sha256(os.fsencode(folder.absolute())).hexdigest()[:16]
    candidates = [SafeFolder(user_cache(), (OURS, name, STORE))]
    if _is_users(folder):
        candidates.insert(0, SafeFolder(folder, (STORE,)))
    # polars cannot open a file whose name is not UTF-8.
    return [
        home
        for home in candidates
        if str(home.path).encode(errors="ignore") == os.fsencode(home.path) and _may_be_users(home.path)
    ]


def user_cache() -> Path:
    """Return the user's cache folder, of all programs."""
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")


def stores_in_user_cache() -> Iterator[SafeFolder]:
    """Yield the stores that lie in the user's cache."""
    cache = SafeFolder(user_cache(), (OURS,))
    for name in filter(_HASHED.fullmatch, cache.names()):
        store = cache / name / STORE
        if store.names():
            yield store


@contextmanager
def locked(home: SafeFolder) -> Iterator[None]:
    """Keep other processes out of a store for a block; make the store unless it is there.

    Raises:
        BlockingIOError: Another process holds the lock.
        OSError: There can be no lock here: the disk is full or has none, or a link is in the way.
    """
    home.make()
    about = home.stat(LOCK)
    if about is not None and not stat.S_ISREG(about.st_mode):
        raise OSError(f"{home.path / LOCK} is no regular file")
    lock = FileLock(home.path / LOCK, timeout=0)
    try:
        lock.acquire()
    except Timeout:
        raise BlockingIOError(f"another process writes to {home.path}") from None
    except NotImplementedError as error:
        raise OSError(str(error)) from error
    try:
        yield
    finally:
        lock.release()


def _is_users(path: Path) -> bool:
    try:
        return path.stat().st_uid == os.geteuid()
    except OSError:
        return False


def _may_be_users(home: Path) -> bool:
    """Return whether a store is missing, or the user's: what a stranger wrote is believed by no answer."""
    try:
        return home.lstat().st_uid == os.geteuid()
    except FileNotFoundError:
        return True
    except OSError:
        return False
