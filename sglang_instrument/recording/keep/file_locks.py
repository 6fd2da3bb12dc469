"""Claim a (role, rank) for this process, so that no two processes write to the same file.

This uses `fcntl.flock`, not the filelock package: importing filelock 4 installs an audit hook, which cannot
be removed, and fork hooks, which delay the trainer's fork for up to 30 s if a lock file hangs.
"""

import fcntl
import os
from collections.abc import Collection
from pathlib import Path
from typing import Final

from sglang_instrument import launchers
from sglang_instrument.config import component
from sglang_instrument.recording.keep.clock import HOST
from sglang_instrument.recording.measure import identity
from sglang_instrument.recording.safety.notices import notice

_TAKEN: Final = "another process writes it"
_MOST_CHILDREN: Final = 10_000  # of one process at once; each that lives costs the next one 10 us


class Claims:
    """The claims of this process in one run's folder. The kernel releases them when the process ends.

    Args:
        folder: The run's folder.
        parents: (role, rank) that a forked child's parent writes, even if the parent has not claimed it yet.
    """

    def __init__(self, folder: Path, parents: Collection[tuple[str, int]] = ()) -> None:
        self._folder = f"{folder}/.locks"
        self._parents = parents
        self._names: dict[tuple[str, int], str] = {}
        self._descriptors: list[int] = []
        #: Whether children of one program use a name of this process in turn.
        self.is_shared_in_turn = False

    def __len__(self) -> int:
        """Return how many names this process has claimed."""
        return len(self._names)

    def name(self, role: str, rank: int) -> str:
        """Return the name of this process's files: `file_name`'s, with `.<host>-<pid>` if that is taken.

        A forked child, or one of multiprocessing if the name is taken, has `.<host>-c0`, or the lowest number
        that no other living child has: a program may start a process for each reward, and its files stay as
        few as the children that live at once.

        Raises:
            OSError: The folder cannot be created; nothing is claimed yet.
        """
        known = self._names.get((role, rank))
        if known is None:
            # No pathlib, and no makedirs() that finds its folder: a forked child copies what it touches.
            if not os.path.isdir(self._folder):  # noqa: PTH112
                os.makedirs(self._folder, exist_ok=True)  # noqa: PTH103
            known = self._claimed(component(identity.file_name(role, rank)), role, rank)
            self._names[role, rank] = known
        return known

    def _claimed(self, name: str, role: str, rank: int) -> str:
        if (role, rank) in self._parents:
            return self._lowest_free(name)
        reason = self._claim(name)
        # An engine's processes live long, and are looked for by their pid.
        if reason == _TAKEN and role not in identity.ENGINE_ROLES and launchers.is_child():
            return self._lowest_free(name)
        return self._or_own(name, reason)

    def held(self) -> list[tuple[str, int, str]]:
        """Return (role, rank, name) of each claim, the first one first."""
        return [(role, rank, name) for (role, rank), name in self._names.items()]

    def release(self) -> None:
        """Release all claims. In a forked child the parent's locks stay locked."""
        for descriptor in self._descriptors:
            os.close(descriptor)  # not LOCK_UN: that would also unlock the parent, which shares the open file
        self._descriptors.clear()
        self._names.clear()

    def _lowest_free(self, name: str) -> str:
        """Claim the lowest number of a child that no living process has."""
        reason = _TAKEN
        for number in range(_MOST_CHILDREN):
            reason = self._claim(f"{name}.{HOST}-c{number}")
            if reason != _TAKEN:
                break
        self.is_shared_in_turn = not reason
        return f"{name}.{HOST}-c{number}" if not reason else self._or_own(name, reason)

    def _or_own(self, name: str, reason: str) -> str:
        """Return the name if it could be claimed; else say why not, and return one of this process alone."""
        if not reason:
            return name
        unique_name = f"{name}.{HOST}-{os.getpid()}"
        notice("claim", f"{name}: {reason}; this process writes {unique_name}.jsonl instead")
        return unique_name

    def _claim(self, name: str) -> str:
        """Try to be the only process that writes files of this name; return why not, "" if it is."""
        path = f"{self._folder}/{name}.lock"
        try:
            descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        except OSError as error:
            return f"the lock file cannot be opened ({error})"
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(descriptor)
            return _TAKEN if isinstance(error, BlockingIOError) else f"locking failed ({error})"
        self._descriptors.append(descriptor)
        return ""
