"""Take a run's files from folders of this machine, one a node, that another program filled.

Afterwards a staged file and the collected one are one file on the disk, so that the run is stored once. What
fills the folder must replace a file that has grown by a new one, as rsync does, not write into it.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from sglang_instrument.collect.collected import OURS, STAGED, Collected
from sglang_instrument.collect.nodes import Function, Node
from sglang_instrument.safe_files.folder import SafeFolder


class StagedNode:
    """A node whose files are here; calls are made here.

    Args:
        name: The node.
    """

    is_far = False

    def __init__(self, name: str) -> None:
        self.name = name

    def calls(self, function: Function, arguments: Iterable[tuple[Any, ...]]) -> Iterator[Any]:
        """Call a function here."""
        return (function(*values) for values in arguments)


class Staging:
    """The folders of the nodes, below the folder that the run is collected into.

    Args:
        folder: That folder.
    """

    def __init__(self, folder: Path) -> None:
        self._collected = SafeFolder(folder)
        self._below = SafeFolder(folder, (OURS, STAGED))

    def where(self, node: Node) -> str:
        """Return the folder of a node, for `gather`."""
        return str(self.of(node.name).path)

    def of(self, name: str) -> SafeFolder:
        """Return the folder of a node; it is made if it is missing."""
        target = self._below / name
        target.make()
        return target

    def store_once(self, files: Sequence[Collected]) -> None:
        """Let the staged copies of each file that is here as a whole be the collected file."""
        for file in files:
            target, name = self._collected.split(file.target)
            if not target.has_file(name):  # pruned
                continue
            for node in file.nodes if file.sha256 else ():
                self._store_once(file, *(self._below / node).split(file.path))

    def _store_once(self, file: Collected, folder: SafeFolder, name: str) -> None:
        target, target_name = self._collected.split(file.target)
        copy, collected = _stat_of(folder, name), _stat_of(target, target_name)
        if copy is None or collected is None or copy.st_size != file.held:
            return
        if (copy.st_dev, copy.st_ino) == (collected.st_dev, collected.st_ino):
            return
        target.set_mtime(target_name, copy.st_mtime_ns)  # by which rsync compares
        folder.link(name, target, target_name)
        file.inode, file.mtime_ns = collected.st_ino, copy.st_mtime_ns


def _stat_of(folder: SafeFolder, name: str) -> os.stat_result | None:
    """Return what is known of a regular file; None if it is none, or missing."""
    try:
        about = folder.stat(name)
    except OSError:  # a link is in place of a folder
        return None
    return about if about is not None and stat.S_ISREG(about.st_mode) else None
