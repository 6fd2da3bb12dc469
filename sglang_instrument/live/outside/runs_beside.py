"""List the runs of a folder by the names and times of their folders alone: no log is read."""

import contextlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sglang_instrument.analysis.reading.folders import is_part

_MOST: Final = 50
_LOOKED_AT: Final = 4  # folders of a run, those of the highest steps


@dataclass(frozen=True)
class RunBeside:
    """A run in the folder of runs.

    Attributes:
        name: The name of its folder.
        newest_step: The highest number of its training steps; None before the first.
        written_us: When a file was added to one of its newest steps, Unix epoch in microseconds.
        is_followed: Whether it is the run that is followed.
    """

    name: str
    newest_step: int | None
    written_us: int
    is_followed: bool


def runs_beside(logs: Path, followed: Path | None) -> tuple[RunBeside, ...]:
    """Return the runs in a folder of runs, those first that were written to last; at most 50.

    Args:
        logs: The folder of runs, or the folder of a run: then the runs beside it.
        followed: The folder of the run that is followed.
    """
    root = logs.parent if followed == logs else logs
    runs: list[RunBeside] = []
    try:
        with os.scandir(root) as children:
            folders = [Path(child) for child in children if child.is_dir()]
    except OSError:
        return ()
    for folder in folders:
        with contextlib.suppress(OSError):  # it vanished, or may not be listed
            run = _run_in(folder, folder == followed)
            runs += [run] if run is not None else []
    return tuple(sorted(runs, key=lambda run: -run.written_us)[:_MOST])


def _run_in(folder: Path, is_followed: bool) -> RunBeside | None:
    parts = [name for name in os.listdir(folder) if is_part(name)]  # noqa: PTH208 - only the names
    if not parts and not is_followed:
        return None
    steps = [int(name[5:]) for name in parts if name.startswith("step_") and name[5:].isdecimal()]
    written_us = int(last_written(folder, parts) * 1e6)
    return RunBeside(folder.name, max(steps, default=None), written_us, is_followed)


def last_written(folder: Path, parts: Sequence[str]) -> float:
    """Return when a file was added to a run, about, in seconds since the Unix epoch; 0 without parts.

    Args:
        folder: The run's folder.
        parts: The names of its folders of steps and engines.

    Raises:
        OSError: A folder vanished, or may not be looked at.
    """
    newest = sorted(parts, key=_number)[-_LOOKED_AT:]
    return max((folder.joinpath(name).stat().st_mtime for name in newest), default=0.0)


def _number(part: str) -> int:
    end = part.rpartition("_")[2]
    return int(end) if end.isdecimal() else 0
