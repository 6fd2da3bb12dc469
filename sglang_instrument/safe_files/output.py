"""Write a file that the user named; an old one of this name stays until the new one is whole."""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from sglang_instrument.safe_files.folder import SafeFolder


@contextmanager
def writing_output(path: Path) -> Iterator[BinaryIO]:
    """Write a file, which appears once it is complete.

    The user chose the path, so a link is followed: the file that it leads to is replaced. A device or a pipe,
    such as /dev/stdout, is written to, for nothing may take its place.

    Raises:
        OSError: It cannot be written. What was there stays as it was.
    """
    target = Path(os.path.realpath(path))
    if _takes_bytes(target):
        with target.open("wb") as file:
            yield file
        return
    folder = SafeFolder(target.parent)
    folder.delete_drafts()
    with folder.writing(target.name, sync=True) as file:
        yield file


def write_output(path: Path, content: bytes) -> None:
    """Write a file at once; see `writing_output`."""
    with writing_output(path) as file:
        file.write(content)


def _takes_bytes(target: Path) -> bool:
    """Return whether a path is a device or a pipe."""
    try:
        mode = target.stat().st_mode
    except OSError:
        return False
    return not stat.S_ISREG(mode) and not stat.S_ISDIR(mode)
