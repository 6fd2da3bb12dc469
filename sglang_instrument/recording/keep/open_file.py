"""Append to an open file, as long as its path and descriptor still belong to it."""

import errno
import os


class OpenFile:
    """One open file.

    `torn` says that its last line is incomplete, `done` how many bytes of the last append were written,
    `inode` identifies the file.
    """

    __slots__ = ("descriptor", "done", "inode", "path", "torn")

    def __init__(self, descriptor: int, path: str) -> None:
        self.descriptor, self.path, self.done = descriptor, path, 0
        status = os.fstat(descriptor)
        self.inode, size = (status.st_dev, status.st_ino), status.st_size
        self.torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"

    def is_ours(self) -> bool:
        """Return whether the descriptor still belongs to this file.

        The program may close all descriptors, or one of its own twice, and so close this one; then another
        file, such as a checkpoint, may get its number.
        """
        try:
            status = os.fstat(self.descriptor)
        except OSError as error:  # a stale network file handle is still ours, and must be closed
            return error.errno != errno.EBADF
        return (status.st_dev, status.st_ino) == self.inode

    def append(self, lines: bytes) -> bool:
        """Write `lines`, after a newline if the last line is incomplete.

        Returns:
            Whether they were written; False if the file is gone (see `write_unless_gone`).
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
    """Write `lines[begin:]` to a file, once; the file may take fewer bytes.

    Returns:
        How many bytes were written; -1 if none: the file was deleted, its handle is stale, or the descriptor
        now belongs to another file.

    Raises:
        OSError: The file cannot be written.
    """
    try:
        status = os.fstat(descriptor)
    except OSError:
        return -1
    if status.st_nlink == 0 or (status.st_dev, status.st_ino) != inode:
        return -1
    return os.write(descriptor, memoryview(lines)[begin:])
