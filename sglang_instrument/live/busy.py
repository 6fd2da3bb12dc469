"""Tell a thread that waits for a disk from one that computes, or waits for a core of a busy machine."""

import math
import threading
import time
from pathlib import Path


class ThreadWork:
    """A piece of work of the thread that makes this object.

    Attributes:
        begun: When it began, in monotonic seconds.
    """

    def __init__(self) -> None:
        self.begun = time.monotonic()
        self._task = Path(f"/proc/self/task/{threading.get_native_id()}")
        self._busy_sec = self._read_busy_sec()

    def busy_sec(self) -> float:
        """Return how long the thread has run or queued for a core since then; infinity if it now does.

        Any thread may call this. Where the system does not tell, the answer is 0.
        """
        return math.inf if self._is_runnable() else self._read_busy_sec() - self._busy_sec

    def _is_runnable(self) -> bool:
        try:
            return self._task.joinpath("stat").read_text().rpartition(")")[2].split()[0] == "R"
        except (OSError, IndexError):
            return False

    def _read_busy_sec(self) -> float:
        try:
            run_ns, queued_ns, _ = map(int, self._task.joinpath("schedstat").read_text().split())
        except (OSError, ValueError):
            return 0.0
        return (run_ns + queued_ns) / 1e9
