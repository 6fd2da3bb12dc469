"""Notice that a step is whole: the files of its workers were closed, and have not grown for a moment."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from sglang_instrument.analysis.reading.folders import ENDINGS, place_of
from sglang_instrument.regular_files import open_regular
from sglang_instrument.schema import LOG_CLOSED, STEP_CLOSED

_SETTLED_SEC: Final = 0.3  # a worker that begins late opens its file in the meantime
_BESIDE: Final = 4  # steps so near to the newest one in progress are looked at each time
_ONE_OF: Final = 50  # every other step is looked at again in this many looks: it may go on
_LATE_SEC: Final = 3.0  # by then, a step that goes on has written more
_TAIL_BYTES: Final = 4096  # a control record is shorter
_LATE_TAIL_BYTES: Final = 64 * 1024
_ENDS: Final = tuple(f'"event":"{event}"'.encode() for event in (STEP_CLOSED, LOG_CLOSED))
_STEP: Final = "step_"
_OTHER_ROLES: Final = frozenset({"trainer", "learner", "reward"})  # their files alone are no rollout


class Sizes(NamedTuple):
    """How large the files of a step's workers were, and when the newest of them was written."""

    sizes: tuple[tuple[str, int], ...]
    newest_ns: int


class FinishedSteps:
    """Finds training steps that became whole since the last look; a step that goes on is found again.

    Args:
        folder: The run's folder.
        since_ns: Steps whose files are all older belong to an earlier run, and are left alone.
    """

    def __init__(self, folder: Path, since_ns: int = 0) -> None:
        self._folder = folder
        self._since_ns = since_ns
        self._seen: dict[int, tuple[Sizes, float]] = {}  # with the time at which these sizes were first seen
        self._done: dict[int, Sizes] = {}
        self._looks = 0
        self._newest: tuple[int, int] | None = None  # when the last change was seen, and of which step

    def look(self) -> list[int]:
        """Return the steps, the oldest first; none while the folder cannot be read."""
        found = []
        self._looks += 1
        for step, sizes in self._steps():
            quiet_sec = self._quiet_sec(step, sizes)
            if self._done.get(step) == sizes or quiet_sec < _SETTLED_SEC:
                continue
            folder, is_late = self._folder / f"{_STEP}{step}", quiet_sec > _LATE_SEC
            if all(_is_closed(folder / name, is_late) for name, _ in sizes.sizes):
                found.append(step)
            elif not is_late:
                continue
            self._done[step] = sizes  # a step that is not whole is looked at again once it goes on
        return sorted(found)

    def forget(self, step: int) -> None:
        """Find a step again at the next looks."""
        self._done.pop(step, None)
        self._seen.pop(step, None)

    def _quiet_sec(self, step: int, sizes: Sizes) -> float:
        """Return for how long the files have had these sizes, as far as this object has seen."""
        now = time.monotonic()
        before, at = self._seen.get(step, (None, now))
        if before != sizes:
            self._seen[step] = sizes, now
            return 0.0
        return now - at

    def _steps(self) -> Iterator[tuple[int, Sizes]]:
        try:
            names = [child.name for child in self._folder.iterdir() if child.name.startswith(_STEP)]
        except OSError:
            return
        steps = sorted(int(number) for name in names if (number := name.removeprefix(_STEP)).isdecimal())
        for step in steps:
            if not self._is_due(step):
                continue
            sizes = _sizes(self._folder / f"{_STEP}{step}")
            if sizes.sizes and sizes.newest_ns >= self._since_ns:
                self._newest = max(self._newest or (0, 0), (sizes.newest_ns, step))
                yield step, sizes
            else:
                self._done.setdefault(step, sizes)

    def _is_due(self, step: int) -> bool:
        """Return whether to look at a step now: a run may go on at step 12 of a folder with 5,000 steps."""
        if step not in self._done or self._newest is None:
            return True
        return abs(step - self._newest[1]) <= _BESIDE or step % _ONE_OF == self._looks % _ONE_OF


def _sizes(folder: Path) -> Sizes:
    """Return the sizes of the files of those that rolled out in the folder of a step."""
    sizes, newest_ns = {}, 0
    try:
        paths = [path for path in folder.iterdir() if path.name.endswith(ENDINGS)]
        roles = {path: place.role for path in paths if (place := place_of(path)) is not None}
        rolled_out = [path for path, role in roles.items() if role not in _OTHER_ROLES]
        for path in [path for path in rolled_out if roles[path] == "worker"] or rolled_out:
            stat = path.stat()
            sizes[path.name] = stat.st_size
            newest_ns = max(newest_ns, stat.st_mtime_ns)
    except OSError:  # the folder vanished
        return Sizes((), 0)
    return Sizes(tuple(sorted(sizes.items())), newest_ns)


def _is_closed(path: Path, is_late: bool) -> bool:
    """Return whether the last record of a file closes its step, or its log.

    If `is_late`, one of the last records is enough: a single record may come after its step was closed.
    """
    wanted = _LATE_TAIL_BYTES if is_late else _TAIL_BYTES
    try:
        with open_regular(path) as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - wanted))
            lines = file.read().splitlines()
    except OSError:
        return False
    return any(end in line for line in (lines if is_late else lines[-1:]) for end in _ENDS)
