"""Write below a folder: no link is followed, what is there stays until the new file is whole.

Others may have made a run's folder: an archive, a shared disk. A link in it, also one in place of a folder
of ours such as `.cache`, may lead to files of the user. So each folder below the root is opened by its name
in the one above (`openat` with O_NOFOLLOW), and files are written, renamed and deleted in the opened folder.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Final

_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_FILE: Final = os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
_DRAFT: Final = re.compile(r"\.sglang_instrument-[0-9a-f]{16}\.draft")
_IN_PLACE: Final = "a link or a file is in place of a folder"
_ABANDONED_SEC: Final = 3600.0  # the draft of a process that lives is written to more often


def is_draft(name: str) -> bool:
    """Return whether this is the name of a file that was never completed, or is being written."""
    return _DRAFT.fullmatch(name) is not None


@dataclass(frozen=True)
class SafeFolder:
    """A folder whose files are written and deleted without following a link.

    Writing makes the missing folders below `root`, but not `root` itself: a folder that vanished stays away.

    Attributes:
        root: A folder that the user named; links on the way to it are followed.
        inside: The names of the folders from there to this one; none may be a link.
    """

    root: Path
    inside: tuple[str, ...] = ()

    @property
    def path(self) -> Path:
        """Where it lies, to read from and for messages."""
        return self.root.joinpath(*self.inside)

    def __truediv__(self, path: str) -> SafeFolder:
        return SafeFolder(self.root, (*self.inside, *path.split("/")))

    def split(self, path: str) -> tuple[SafeFolder, str]:
        """Return the folder of a path below this one, with "/" between its names, and the last name."""
        *folders, name = path.split("/")
        return SafeFolder(self.root, (*self.inside, *folders)), name

    def make(self) -> None:
        """Make it, and `root`, unless they are there.

        Raises:
            OSError: It cannot be made, or a link or a file is in its place.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        with self.opened(make=True):
            pass

    @contextmanager
    def opened(self, make: bool = False) -> Iterator[int]:
        """Open it for a block.

        Raises:
            OSError: It is missing and `make` is not set, or a link or a file is in its place.
        """
        descriptor = os.open(self.root, _FOLDER)
        try:
            for depth, name in enumerate(self.inside):
                below = _open_below(descriptor, name, self.root.joinpath(*self.inside[: depth + 1]), make)
                os.close(descriptor)
                descriptor = below
            yield descriptor
        finally:
            os.close(descriptor)

    def names(self) -> list[str]:
        """Return the names in it, in order; [] if it is missing, or a link is in its place."""
        try:
            with self.opened() as descriptor:
                return sorted(os.listdir(descriptor))  # noqa: PTH208 - pathlib lists no open folder
        except OSError:
            return []

    def stat(self, name: str) -> os.stat_result | None:
        """Return what is known of a file, a folder or a link itself; None if it is missing."""
        try:
            with self.opened() as descriptor:
                return os.stat(_checked(name), dir_fd=descriptor, follow_symlinks=False)
        except FileNotFoundError:
            return None

    def has_file(self, name: str) -> bool:
        """Return whether a regular file of this name, no link, is in it."""
        try:
            about = self.stat(name)
        except OSError:
            return False
        return about is not None and stat.S_ISREG(about.st_mode)

    @contextmanager
    def writing(self, name: str, sync: bool = False) -> Iterator[BinaryIO]:
        """Write a file that gets its name when it is whole; until then, or after an error, the old one stays.

        Args:
            name: Its name. A link of this name is replaced, and not followed.
            sync: Whether to wait until the file and its name are on the disk.

        Raises:
            OSError: It cannot be written, the disk is full, or a folder has this name.
        """
        draft = f".sglang_instrument-{os.urandom(8).hex()}.draft"
        with self.opened(make=True) as descriptor:
            opened = os.open(draft, os.O_RDWR | os.O_EXCL | _FILE, 0o666, dir_fd=descriptor)
            try:
                with os.fdopen(opened, "w+b") as file:
                    yield file
                    file.flush()
                    _keep_mode(opened, _checked(name), descriptor)
                    if sync:
                        os.fsync(opened)
                os.rename(draft, name, src_dir_fd=descriptor, dst_dir_fd=descriptor)
            except BaseException:
                with suppress(OSError):
                    os.unlink(draft, dir_fd=descriptor)
                raise
            if sync:
                os.fsync(descriptor)

    def write(self, name: str, content: bytes, sync: bool = False) -> None:
        """Write a file at once; see `writing`."""
        with self.writing(name, sync) as file:
            file.write(content)

    @contextmanager
    def changing(self, name: str, append: bool = False) -> Iterator[BinaryIO]:
        """Open a file of ours to read it and to write into it, without a buffer; it is made if it is missing.

        Args:
            name: Its name.
            append: Whether to write at its end, wherever it was read.

        Raises:
            OSError: It cannot be opened, or it is a link or no regular file.
        """
        with self.opened(make=True) as descriptor:
            flags = os.O_RDWR | _FILE | (os.O_APPEND if append else 0)
            opened = os.open(_checked(name), flags, 0o666, dir_fd=descriptor)
            with os.fdopen(opened, "r+b", buffering=0) as file:
                if not stat.S_ISREG(os.fstat(opened).st_mode):
                    raise OSError(errno.EINVAL, "no regular file", str(self.path / name))
                yield file

    @contextmanager
    def locked(self, name: str) -> Iterator[None]:
        """Keep other processes out of a block by a lock on a file of this name, where the disk has locks.

        Raises:
            BlockingIOError: Another process holds it.
            OSError: The file cannot be opened, or it is a link or no regular file.
        """
        with self.changing(name) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                path = str(self.path / name)
                raise BlockingIOError(error.errno, "another process holds this lock", path) from None
            except OSError:  # a file system without locks
                pass
            yield

    def link(self, name: str, old: SafeFolder, old_name: str) -> None:
        """Give a file of another folder a second name here; a file of this name is replaced."""
        draft = f".sglang_instrument-{os.urandom(8).hex()}.draft"
        with old.opened() as source, self.opened(make=True) as descriptor:
            names = _checked(old_name), draft
            os.link(*names, src_dir_fd=source, dst_dir_fd=descriptor, follow_symlinks=False)
            try:
                os.rename(draft, _checked(name), src_dir_fd=descriptor, dst_dir_fd=descriptor)
            except OSError:
                os.unlink(draft, dir_fd=descriptor)
                raise

    def set_mtime(self, name: str, mtime_ns: int) -> None:
        """Set when a file was changed last; a link is not followed."""
        with self.opened() as descriptor:
            times = (mtime_ns, mtime_ns)
            os.utime(_checked(name), ns=times, dir_fd=descriptor, follow_symlinks=False)

    def rename_folder(self, old: str, new: str) -> None:
        """Rename a folder in it, and wait until the new name is on the disk."""
        with self.opened() as descriptor:
            os.rename(_checked(old), _checked(new), src_dir_fd=descriptor, dst_dir_fd=descriptor)
            os.fsync(descriptor)

    def delete(self, name: str, links: bool = False) -> None:
        """Delete a file of ours; nothing happens if it is missing.

        Args:
            name: Its name.
            links: Whether to delete a link, too; what it leads to stays in any case.

        Raises:
            OSError: It cannot be deleted, or it is no regular file.
        """
        with suppress(FileNotFoundError), self.opened() as descriptor:
            mode = os.stat(_checked(name), dir_fd=descriptor, follow_symlinks=False).st_mode
            if not (stat.S_ISREG(mode) or (links and stat.S_ISLNK(mode))):
                raise OSError(errno.EINVAL, "no regular file", str(self.path / name))
            os.unlink(name, dir_fd=descriptor)

    def delete_those(self, are_ours: Callable[[str], bool]) -> None:
        """Delete the regular files whose names are ours; what cannot be deleted wastes space, and stays."""
        for name in self.names():
            if are_ours(name):
                with suppress(OSError):
                    self.delete(name)

    def delete_drafts(self, at_once: bool = False) -> None:
        """Delete what killed processes began to write here.

        Args:
            at_once: Whether no other process can be writing here, because the caller holds a lock.
        """
        oldest = time.time() - _ABANDONED_SEC
        for name in filter(is_draft, self.names()):
            with suppress(OSError):
                about = self.stat(name)
                if about is not None and (at_once or about.st_mtime < oldest):
                    self.delete(name)

    def delete_folder(self, name: str) -> None:
        """Delete an empty folder in it; one that is missing, holds something, or is a link stays as it is."""
        with suppress(OSError), self.opened() as descriptor:
            os.rmdir(_checked(name), dir_fd=descriptor)


def write_whole(file: BinaryIO, content: bytes | memoryview) -> None:
    """Write all bytes to a file without a buffer: one call may write only some of them.

    Raises:
        OSError: The disk is full.
    """
    left = memoryview(content)
    while left:
        left = left[file.write(left) :]


def _open_below(descriptor: int, name: str, path: Path, make: bool) -> int:
    try:
        return os.open(_checked(name), _FOLDER | os.O_NOFOLLOW, dir_fd=descriptor)
    except FileNotFoundError:
        if not make:
            raise
        with suppress(FileExistsError):  # another process made it just now
            os.mkdir(name, dir_fd=descriptor)
        return _open_below(descriptor, name, path, make=False)
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            raise NotADirectoryError(error.errno, _IN_PLACE, str(path)) from None
        raise OSError(error.errno, error.strerror, str(path)) from None


def _checked(name: str) -> str:
    """Return a name, unless it leads to another folder."""
    if name in ("", ".", "..") or "/" in name or "\0" in name:
        raise OSError(errno.EINVAL, "no name of a file", name)
    return name


def _keep_mode(opened: int, name: str, descriptor: int) -> None:
    """Let a new file have the rights of the one that it replaces."""
    with suppress(OSError):
        old = os.stat(name, dir_fd=descriptor, follow_symlinks=False)
        if stat.S_ISREG(old.st_mode):
            os.fchmod(opened, old.st_mode & 0o777)
