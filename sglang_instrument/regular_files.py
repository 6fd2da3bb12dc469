"""Open regular files only: a read of a FIFO waits for a writer, and a device may never end.

Anyone with write access to a log folder can put such a file, or a link to one, under a name that we read.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from pathlib import Path

_MOST_RATIO = 500  # of unpacked bytes; logs have 10 to 30
_ANY_RATIO_BYTES = 2**28  # up to so many may be packed in any way


def demand_regular(path: str | os.PathLike[str]) -> None:
    """Raise unless a path is a regular file, or a link to one.

    Raises:
        OSError: The file is missing, or is a FIFO, a device, a socket or a folder.
    """
    _demand(os.stat(path).st_mode, path)  # noqa: PTH116 - recording opens its files without pathlib


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file, or a link to one, for reading.

    Raises:
        OSError: As `demand_regular`, or the file cannot be read.
    """
    demand_regular(path)  # before open(): opening a device may already have an effect
    # Another process may replace the file between check and open(): open without waiting, and check again.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        _demand(os.fstat(descriptor).st_mode, path)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_regular(path: str | os.PathLike[str], most_bytes: int = 64 * 2**20) -> bytes:
    """Return the bytes of a regular file.

    Raises:
        OSError: As `open_regular`, or the file is larger than `most_bytes`.
    """
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > most_bytes:
            raise OSError(errno.EFBIG, f"more than {most_bytes:,} bytes", os.fspath(path))
        return file.read()


def demand_plausible(unpacked_bytes: int, packed_bytes: int) -> None:
    """Raise if compressed bytes stand for many more than any log has: a few could fill the memory.

    Raises:
        OSError: They do.
    """
    if unpacked_bytes > max(_ANY_RATIO_BYTES, _MOST_RATIO * packed_bytes):
        raise OSError(errno.EFBIG, f"it unpacks to more than {_MOST_RATIO} times its bytes")


def write_anew(path: Path, content: bytes) -> None:
    """Write a new file; delete an existing one of this name first, without opening or following it.

    Raises:
        OSError: The file cannot be written, or a folder has this name.
    """
    path.unlink(missing_ok=True)
    with path.open("xb") as file:
        file.write(content)


def _demand(mode: int, path: str | os.PathLike[str]) -> None:
    if not stat.S_ISREG(mode):
        raise OSError(errno.EINVAL, f"not a regular file but {_kind(mode)}", os.fspath(path))


def _kind(mode: int) -> str:
    kinds = {stat.S_IFIFO: "a FIFO", stat.S_IFSOCK: "a socket", stat.S_IFDIR: "a folder"}
    return kinds.get(stat.S_IFMT(mode), "a device")
