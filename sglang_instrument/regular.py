"""Open regular files alone: nothing comes from a FIFO until somebody writes, and a device never ends.

Whoever may write to a folder of logs may put such a file, or a link to one, under a name that is read there.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import TYPE_CHECKING, BinaryIO

if TYPE_CHECKING:
    from pathlib import Path


def demand_regular(path: str | os.PathLike[str]) -> None:
    """Refuse what is no regular file, nor a link to one.

    Raises:
        OSError: There is none, or it is a FIFO, a device, a socket or a folder.
    """
    _demand(os.stat(path).st_mode, path)  # noqa: PTH116 - recording opens its files without pathlib


def open_regular(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a regular file, or a link to one, for reading.

    Raises:
        OSError: As `demand_regular`, or it cannot be read.
    """
    demand_regular(path)  # before it is opened: to open a device may already do something
    # It may be replaced before it is opened, so this must not wait, and looks again.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        _demand(os.fstat(descriptor).st_mode, path)
        return os.fdopen(descriptor, "rb")
    except BaseException:
        os.close(descriptor)
        raise


def read_regular(path: str | os.PathLike[str], most_bytes: int = 64 * 2**20) -> bytes:
    """Return what a regular file holds.

    Raises:
        OSError: As `open_regular`, or it holds more than `most_bytes`.
    """
    with open_regular(path) as file:
        if os.fstat(file.fileno()).st_size > most_bytes:
            raise OSError(errno.EFBIG, f"more than {most_bytes:,} bytes", os.fspath(path))
        return file.read()


def write_anew(path: Path, content: bytes) -> None:
    """Write a new file; what has its name is deleted, and neither opened nor followed.

    Raises:
        OSError: It cannot be written, or a folder has its name.
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
