"""Keep what was made of the pieces of a long run, so that the next call reads only those that changed."""

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from sglang_instrument.analysis.long_runs.reduced import Reduced
from sglang_instrument.regular_files import read_regular
from sglang_instrument.safe_files.folder import SafeFolder

_FOLDER: Final = "pieces"  # in that of the cache
_MOST_BYTES: Final = 2**28  # of a piece
_STATE: Final = re.compile("[0-9a-f]{24}|draft-[0-9a-f]{12}")  # the second: of earlier versions


class PieceCache:
    """What was kept of pieces, in a folder of the run's cache.

    Args:
        homes: Where the cache may lie; the first that can be written is used.
    """

    def __init__(self, homes: Sequence[SafeFolder]) -> None:
        self._homes = [home / _FOLDER for home in homes]
        self._used: set[str] = set()

    def load(self, state: str) -> Reduced | None:
        """Return what was kept of a piece in this state; None if nothing was."""
        for home in self._homes:
            try:
                reduced = msgspec.msgpack.decode(read_regular(home.path / state, _MOST_BYTES), type=Reduced)
            except (OSError, msgspec.MsgspecError):
                continue
            self._used.add(state)
            return reduced
        return None

    def save(self, state: str, packed: bytes) -> None:
        """Keep it for the next time, where that is possible."""
        for home in self._homes:
            try:
                home.make()
                home.write(state, packed)
            except OSError:
                continue
            self._used.add(state)
            return

    def forget_others(self) -> None:
        """Delete what was kept of pieces in other states than those of this time."""
        for home in self._homes:
            home.delete_those(lambda name: name not in self._used and _STATE.fullmatch(name) is not None)
            home.delete_drafts()
