"""What the encoder's thread sleeps on."""

import contextlib
import queue
from typing import Any


class Bell:
    """Wakes who waits for it, at once or at a tick."""

    def __init__(self) -> None:
        self._rings: queue.SimpleQueue[None] = queue.SimpleQueue()  # signal handlers may put, too

    def ring(self) -> None:
        """Wake who waits, or who waits next."""
        if self._rings.empty():
            self._rings.put(None)

    def wait(self, tick_sec: float, most_ticks: int, buffer: list[Any]) -> int:
        """Wait for a tick, or for several as long as nothing is in the buffer.

        Returns:
            How many ticks have passed; 0 if the bell rang.
        """
        for tick in range(1, most_ticks + 1):
            try:
                self._rings.get(timeout=tick_sec)
            except queue.Empty:
                if buffer:
                    return tick
            else:
                self._forget_rings()
                return 0
        return most_ticks

    def _forget_rings(self) -> None:
        with contextlib.suppress(queue.Empty):
            while True:
                self._rings.get_nowait()
