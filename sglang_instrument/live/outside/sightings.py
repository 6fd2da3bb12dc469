"""Write into the run's folder what a follower saw of processes that cannot write it themselves.

`live/HOST.json` holds what followers on one host saw: what was silent, and which processes were gone. Without
it, nothing in the log tells later whether a process hung, was stopped, or was killed.
"""

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from sglang_instrument.analysis.reading.liveness import sightings_in
from sglang_instrument.safe_files.folder import SafeFolder

_AGAIN_SEC: Final = 10.0  # while it lasts, its newest sight is written so often
_MOST: Final = 200  # sightings of a host


class Sightings:
    """Keeps the file of this host.

    Args:
        folder: The run's folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = SafeFolder(folder) / "live"
        self._name = f"{os.uname().nodename}.json"
        self._written: frozenset[tuple[Any, ...]] = frozenset()
        self._again_at = 0.0

    def write(self, seen: Sequence[dict[str, Any]], now: float) -> None:
        """Write what is seen now, if it is new or was written a while ago.

        A folder that cannot be written to is none of the follower's troubles.

        Args:
            seen: run_id, kind, role, worker, step, since_us, seen_us and sentence of each.
            now: Monotonic seconds.
        """
        keys = frozenset(map(_key, seen))
        if not seen or (keys <= self._written and now < self._again_at):
            return
        self._written, self._again_at = keys, now + _AGAIN_SEC
        try:
            before = sightings_in(self._folder.path / self._name)
            earlier = [sighting for sighting in before if _key(sighting) not in keys]
            content = json.dumps({"sightings": [*earlier, *seen][-_MOST:]}, indent=1)
            self._folder.write(self._name, f"{content}\n".encode())
        except OSError:
            return


def _key(sighting: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(sighting.get(name) for name in ("run_id", "kind", "role", "worker", "step"))
