"""Append to a file as long as it is the one that was opened."""

import errno
import os
from pathlib import Path


class OpenFile:
    """One open file.

    `torn` says that its last line is not whole, `done` how many bytes of the last append it took, `inode`
    which file it is.
    """

    __slots__ = ("descriptor", "done", "inode", "path", "torn")

    def __init__(self, descriptor: int, path: Path) -> None:
        self.descriptor, self.path, self.done = descriptor, path, 0
        status = os.fstat(descriptor)
        self.inode, size = (status.st_dev, status.st_ino), status.st_size
        self.torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"

    def is_ours(self) -> bool:
        """Return whether the descriptor still is this file's.

        Who closes all that there are, or one twice, closes it; then a checkpoint may have its number.
        """
        try:
            status = os.fstat(self.descriptor)
        except OSError as error:  # a stale handle is ours, and must be closed
            return error.errno != errno.EBADF
        return (status.st_dev, status.st_ino) == self.inode

    def append(self, lines: bytes) -> bool:
        """Write `lines` on a line of their own.

        Returns:
            Whether that was done; it is not where nobody would find them.
        """
        self.done = 0
        if self.torn:
            if write_unless_gone(self.descriptor, self.inode, b"\n", 0) < 0:
                return False
            self.torn = False
        while self.done < len(lines):
            written = write_unless_gone(self.descriptor, self.inode, lines, self.done)
            if written < 0:
                return False
            self.done += written
        return True


def write_unless_gone(descriptor: int, inode: tuple[int, int], lines: bytes, begin: int) -> int:
    """Write lines to a file, from a byte of them on, as far as it takes them.

    Returns:
        How many bytes were written; -1 if nothing was: the file was deleted, its handle is stale, or the
        descriptor is another file's by now.

    Raises:
        OSError: It cannot be written.
    """
    try:
        status = os.fstat(descriptor)
    except OSError:
        return -1
    if status.st_nlink == 0 or (status.st_dev, status.st_ino) != inode:
        return -1
    return os.write(descriptor, memoryview(lines)[begin:])
