"""Collect what the processes of a world record, by the files that they write to."""

from collections import defaultdict
from typing import Any, NamedTuple


class WorldRecord(NamedTuple):
    """A record in the making; times are seconds of the world. An instant event happens at its `end`."""

    event: str
    begin: float
    end: float
    extra: dict[str, Any]
    task: int = 0
    spawned_by: int | None = None
    instant: bool = False
    phase: str | None = None
    error: str | None = None


class RecordFiles:
    """The records of a world, by file: `engine/server_0`, `step_3/worker_1`."""

    def __init__(self) -> None:
        self.files: dict[str, list[WorldRecord]] = defaultdict(list)

    def add(
        self, file: str, event: str, begin: float, end: float, extra: dict[str, Any], **more: Any
    ) -> None:
        """WorldRecord what happened."""
        self.files[file].append(WorldRecord(event, begin, end, extra, **more))
