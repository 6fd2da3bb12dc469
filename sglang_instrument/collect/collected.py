"""Keep what was collected into a folder: which files, whose they are, how much of each is here."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

import msgspec

from sglang_instrument.collect.on_node import hash_start
from sglang_instrument.errors import LogError
from sglang_instrument.regular_files import read_regular
from sglang_instrument.safe_files.folder import SafeFolder, write_whole

#: Our folder within the collected run; readers of runs leave it out.
OURS: Final = ".collect"
#: The folder in it for those of nodes that another program fills.
STAGED: Final = "nodes"
#: The folder in which `prune` keeps the digest of what it deleted.
PRUNED: Final = ".pruned"
_STATE: Final = "state.json"
_LOCK: Final = "lock"
_MOST_STATE_BYTES: Final = 2**30


class Collected(msgspec.Struct):
    """One file of the run, which is here in part or whole.

    Attributes:
        path: Its path on its nodes, below the run's folder.
        target: Its path here. It differs where two nodes hold different files of one name.
        key, inode, is_log, mtime_ns: As `on_node.describe` found them.
        nodes: All nodes that hold this same file: several, if they share a disk.
        node: The node that gave its bytes.
        held: How many of its bytes are here.
        sha256: The hash of these, equal here and on the node; "" until it was compared.
    """

    path: str
    target: str
    key: str
    inode: int
    is_log: bool
    nodes: list[str]
    node: str = ""
    mtime_ns: int = 0
    held: int = 0
    sha256: str = ""


class _State(msgspec.Struct):
    version: int
    files: list[Collected]


class CollectedFolder:
    """The folder that a run is collected into.

    Args:
        folder: It is made if it is missing.

    Raises:
        LogError: It holds a run that was not collected, its state cannot be read, or it cannot be made.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._below = SafeFolder(folder)
        self._ours = self._below / OURS
        self.files = self._read_state()
        if not self._ours.has_file(_STATE) and any(name != OURS for name in self._below.names()):
            raise LogError(f"{folder} holds files that `collect` did not bring; give a new or empty folder")
        self._is_new = not os.path.lexists(self._ours.path)
        self._made_folder = not folder.exists()
        try:
            self._ours.make()
        except OSError as error:
            raise LogError(f"{folder} cannot be made: {error.strerror}") from None
        self._pruned = _pruned(folder)

    def _read_state(self) -> list[Collected]:
        path = self._ours.path / _STATE
        if not path.exists():
            return []
        try:
            return msgspec.json.decode(read_regular(path, _MOST_STATE_BYTES), type=_State).files
        except (OSError, msgspec.MsgspecError) as error:
            raise LogError(f"{path}: {error}; remove {self.folder} and collect again") from None

    def save(self) -> None:
        """Write which files are here; the old state stays until the new one is whole."""
        self._ours.write(_STATE, msgspec.json.encode(_State(1, self.files)), sync=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other commands from collecting into this folder; then remove it if it is new and nothing came.

        Raises:
            LogError: Another command collects into it, or has just removed it.
        """
        with ExitStack() as stack:
            try:
                stack.enter_context(self._ours.locked(_LOCK))
            except BlockingIOError:
                raise LogError(f"another `collect` writes into {self.folder}") from None
            except OSError as error:
                raise LogError(f"{self._ours.path} cannot be locked: {error.strerror}") from None
            self.files = self._read_state()  # another one may have ended just now
            self._ours.delete_drafts(at_once=True)
            if not self._ours.has_file(_STATE):
                self.save()  # before the first file comes: a killed command can go on
            try:
                yield
            finally:
                if not self.files and self._is_new:
                    self._remove_what_was_made()

    def _remove_what_was_made(self) -> None:
        for file in (_STATE, _LOCK):
            self._ours.delete(file)
        for node in (self._ours / STAGED).names():
            (self._ours / STAGED).delete_folder(node)
        self._ours.delete_folder(STAGED)
        self._below.delete_folder(OURS)
        if self._made_folder:
            path = self.folder.absolute()
            SafeFolder(path.parent).delete_folder(path.name)

    def local(self, file: Collected) -> Path:
        """Return where a file is kept."""
        return self.folder / file.target

    def held_bytes(self, file: Collected) -> int:
        """Return how many of the bytes that the state names are here: 0 if the file was shortened."""
        try:
            size = self.local(file).lstat().st_size
        except OSError:
            return file.held if self.is_pruned(file) else 0
        return file.held if size >= file.held else 0

    def is_pruned(self, file: Collected) -> bool:
        """Return whether `prune` deleted a file here, with all that was brought of it."""
        return (file.target, file.held) in self._pruned and not os.path.lexists(self.local(file))

    def append(self, file: Collected, begin: int, content: bytes | memoryview) -> None:
        """Write bytes of a file at `begin`; what an interrupted command wrote after it is replaced."""
        folder, name = self._below.split(file.target)
        if begin == 0:
            folder.delete(name, links=True)
        with folder.changing(name) as out:
            out.truncate(begin)
            out.seek(begin)
            write_whole(out, content)
        file.held, file.sha256 = begin + len(content), ""

    def delete(self, file: Collected) -> None:
        """Delete a file here that its nodes replaced by another one."""
        folder, name = self._below.split(file.target)
        folder.delete(name)

    def hash(self, file: Collected, size: int) -> str:
        """Return the SHA-256 of the first bytes that are here; "" if the file is not."""
        try:
            return hash_start(str(self.local(file)), size)
        except OSError:
            return ""


class _PrunedFile(msgspec.Struct):
    path: str
    size: int


class _Pruned(msgspec.Struct):
    files: list[_PrunedFile]


def _pruned(folder: Path) -> set[tuple[str, int]]:
    """Return the path and the size of each file that `prune` deleted in a folder."""
    pruned: set[tuple[str, int]] = set()
    for path in (folder / PRUNED).glob("[!.]*/*.json"):  # digest.json: of earlier versions
        try:
            read = msgspec.json.decode(read_regular(path, _MOST_STATE_BYTES), type=_Pruned)
        except (OSError, msgspec.MsgspecError):
            continue  # readers of the run say so; these files are brought again
        pruned.update((file.path, file.size) for file in read.files)
    return pruned
