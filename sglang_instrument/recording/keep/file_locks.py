"""Claim a (role, rank) for this process, so that no two processes write to the same file.

This uses `fcntl.flock`, not the filelock package: importing filelock 4 installs an audit hook, which cannot
be removed, and fork hooks, which delay the trainer's fork for up to 30 s if a lock file hangs.
"""

import fcntl
import os
from collections.abc import Collection
from pathlib import Path

from sglang_instrument.config import component
from sglang_instrument.recording.keep.clock import HOST
from sglang_instrument.recording.measure.identity import file_name
from sglang_instrument.recording.safety.notices import notice


class Claims:
    """The claims of this process in one run's folder. The kernel releases them when the process ends.

    Args:
        folder: The run's folder.
        parents: (role, rank) that a forked child's parent writes, even if the parent has not claimed it yet.
    """

    def __init__(self, folder: Path, parents: Collection[tuple[str, int]] = ()) -> None:
        self._folder = folder / ".locks"
        self._parents = parents
        self._names: dict[tuple[str, int], str] = {}
        self._descriptors: list[int] = []

    def __len__(self) -> int:
        """Return how many names this process has claimed."""
        return len(self._names)

    def name(self, role: str, rank: int) -> str:
        """Return the name of this process's files: see `file_name`; with `.<host>-<pid>` if that is taken.

        Raises:
            OSError: The folder cannot be created; nothing is claimed yet.
        """
        known = self._names.get((role, rank))
        if known is None:
            self._folder.mkdir(parents=True, exist_ok=True)
            name = component(file_name(role, rank))
            is_own = self._claim(name, (role, rank) in self._parents)
            known = self._names[role, rank] = name if is_own else f"{name}.{HOST}-{os.getpid()}"
        return known

    def held(self) -> list[tuple[str, int, str]]:
        """Return (role, rank, name) of each claim, the first one first."""
        return [(role, rank, name) for (role, rank), name in self._names.items()]

    def release(self) -> None:
        """Release all claims. In a forked child the parent's locks stay locked."""
        for descriptor in self._descriptors:
            os.close(descriptor)  # not LOCK_UN: that would also unlock the parent, which shares the open file
        self._descriptors.clear()
        self._names.clear()

    def _claim(self, name: str, is_parents: bool) -> bool:
        """Return whether this process is now the only one that writes files of this name."""
        if is_parents:
            return _refused(name, "the parent process writes it")
        try:
            descriptor = os.open(self._folder / f"{name}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            return _refused(name, f"the lock file cannot be opened ({error})")
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            taken = isinstance(error, BlockingIOError)
            return _refused(name, "another process writes it" if taken else f"locking failed ({error})")
        self._descriptors.append(descriptor)
        return True


def _refused(name: str, reason: str) -> bool:
    notice("claim", f"{name}: {reason}; this process writes {name}.{HOST}-{os.getpid()}.jsonl instead")
    return False
