"""Keep what was made of the pieces of a long run, so that the next call reads only those that changed."""

import contextlib
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec

from sglang_instrument.analysis.long_runs.reduced import Reduced
from sglang_instrument.regular_files import read_regular

_FOLDER: Final = "pieces"  # in that of the cache
_MOST_BYTES: Final = 2**28  # of a piece


class PieceCache:
    """What was kept of pieces, in a folder of the run's cache.

    Args:
        homes: Where the cache may lie; the first that can be written is used.
    """

    def __init__(self, homes: Sequence[Path]) -> None:
        self._homes = [home / _FOLDER for home in homes]
        self._used: set[str] = set()

    def load(self, state: str) -> Reduced | None:
        """Return what was kept of a piece in this state; None if nothing was."""
        for home in self._homes:
            try:
                found = msgspec.msgpack.decode(read_regular(home / state, _MOST_BYTES), type=Reduced)
            except (OSError, msgspec.MsgspecError):
                continue
            self._used.add(state)
            return found
        return None

    def save(self, state: str, packed: bytes) -> None:
        """Keep it for the next time, where that is possible."""
        for home in self._homes:
            draft = home / f"draft-{os.urandom(6).hex()}"
            try:
                home.mkdir(parents=True, exist_ok=True)
                draft.write_bytes(packed)
                draft.replace(home / state)
            except OSError:
                continue
            self._used.add(state)
            return

    def forget_others(self) -> None:
        """Delete what was kept of pieces in other states than those of this time."""
        for home in self._homes:
            for path in home.glob("*"):
                if path.name not in self._used:
                    with contextlib.suppress(OSError):  # it wastes space, but changes no answer
                        path.unlink()
