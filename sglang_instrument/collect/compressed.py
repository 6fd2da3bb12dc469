"""Drop a collected log whose nodes now hold only its compressed file: no record may count twice."""

from __future__ import annotations

import hashlib
from collections.abc import Collection
from typing import Final

from sglang_instrument.collect.collected import Collected, CollectedFolder
from sglang_instrument.collect.on_node import BLOCK

_ENDING: Final = ".zst"


def drop_replaced(folder: CollectedFolder, offered: Collection[str]) -> list[str]:
    """Delete each log that begins a compressed one of the same nodes; return the paths here.

    Args:
        folder: What was collected.
        offered: Paths here of the files that a node still holds: they stay.
    """
    compressed = {
        file.path.removesuffix(_ENDING): file
        for file in folder.files
        if file.path.endswith(_ENDING) and file.sha256
    }
    gone = [
        file
        for file in folder.files
        if file.is_log
        and file.target not in offered
        and (new := compressed.get(file.path)) is not None
        and not set(new.nodes).isdisjoint(file.nodes)
        and _begins(folder, new, file)
    ]
    for file in gone:
        folder.delete(file)
    dropped = {file.target for file in gone}
    folder.files = [file for file in folder.files if file.target not in dropped]
    return sorted(dropped)


def _begins(folder: CollectedFolder, compressed: Collected, log: Collected) -> bool:
    """Return whether a compressed log begins with all bytes that are here of a log."""
    import zstandard

    total, left = hashlib.sha256(), log.held
    try:
        with zstandard.open(folder.local(compressed), "rb") as stream:
            while left > 0 and (block := stream.read(min(BLOCK, left))):
                total.update(block)
                left -= len(block)
    except (OSError, zstandard.ZstdError):
        return False
    return left == 0 and total.hexdigest() == folder.hash(log, log.held)
