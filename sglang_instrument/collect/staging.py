"""Take a run's files from folders of this machine, one a node, that another program filled.

Afterwards a staged file and the collected one are one file on the disk, so that the run is stored once. What
fills the folder must replace a file that has grown by a new one, as rsync does, not write into it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

from sglang_instrument.collect.collected import OURS, Collected
from sglang_instrument.collect.nodes import Function, Node


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
        return (function(*one) for one in arguments)


class Staging:
    """The folders of the nodes, below the folder that the run is collected into.

    Args:
        folder: That folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._below = folder / OURS / "nodes"

    def where(self, node: Node) -> str:
        """Return the folder of a node, for `gather`."""
        return str(self.of(node.name))

    def of(self, name: str) -> Path:
        """Return the folder of a node; it is made if it is missing."""
        target = self._below / name
        target.mkdir(parents=True, exist_ok=True)
        return target

    def store_once(self, files: Sequence[Collected]) -> None:
        """Let the staged copies of each file that is here as a whole be the collected file."""
        for file in files:
            target = self._folder / file.target
            if not target.exists():  # pruned
                continue
            for node in file.nodes if file.sha256 else ():
                copy = self._below / node / file.path
                if not copy.exists() or copy.samefile(target) or copy.stat().st_size != file.held:
                    continue
                times = copy.stat()
                os.utime(target, ns=(times.st_atime_ns, times.st_mtime_ns))  # by which rsync compares
                new = copy.with_name(f".{copy.name}.new")
                new.unlink(missing_ok=True)
                os.link(target, new)
                new.replace(copy)
                file.inode, file.mtime_ns = target.stat().st_ino, times.st_mtime_ns
