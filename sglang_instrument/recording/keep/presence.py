"""Say that this process was reached, though it may never record anything.

A process that records describes itself in `processes/`. One whose code was patched does so in
`processes/reached/` even before, from a thread that lives until nothing more is patched.
"""

import os
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import orjson

from sglang_instrument.recording.keep.clock import HOST
from sglang_instrument.recording.measure.values import settle
from sglang_instrument.recording.safety.notices import swallowed
from sglang_instrument.regular_files import write_anew

QUIET_SEC: Final = 2.0  # one import patches after another; the last one of them is worth a file
_EXIT_SEC: Final = 0.5  # at exit, for a process that ends at once


class Presence:
    """Writes what this process is, some time after something in it was patched.

    Args:
        folder: The run's folder.
        describe: Returns what this process is.
    """

    def __init__(self, folder: Path, describe: Callable[[], Mapping[str, Any]]) -> None:
        self._path = folder / "processes" / "reached" / f"{HOST}-{os.getpid()}.json"
        self._describe = describe
        self._lock = threading.RLock()  # a signal handler's import may be patched while the thread is started
        self._thread: threading.Thread | None = None
        self._is_news = False
        self._ending = threading.Event()
        self._cancelled = False

    def tell(self) -> None:
        """Have it written that something was patched here, or could not be."""
        with self._lock:
            self._is_news = True
            if self._thread is None and not self._ending.is_set():
                self._thread = threading.Thread(
                    target=self._run, name="sglang_instrument-reached", daemon=True
                )
                try:
                    self._thread.start()
                except (RuntimeError, MemoryError) as error:  # no more threads, or the interpreter is going
                    self._thread = None
                    swallowed("saying that this process was reached", error)

    def end(self, wait_sec: float) -> None:
        """Write what is not written yet, as the process ends; wait for it so long, and only a moment."""
        self._ending.set()
        thread = self._thread
        if thread is not None and thread.is_alive():
            thread.join(min(wait_sec, _EXIT_SEC))

    def cancel(self) -> None:
        """Write nothing any more: what was patched is being put back."""
        self._cancelled = True
        self._ending.set()

    def _run(self) -> None:
        while True:
            self._ending.wait(QUIET_SEC)
            with self._lock:
                if not self._is_news or self._cancelled:
                    self._thread = None
                    return
                self._is_news = False
            try:
                self._write()
            except Exception as error:  # a disk that cannot be written is said where records are lost
                swallowed("saying that this process was reached", error)

    def _write(self) -> None:
        facts = settle({"role": None, "rank": None, **self._describe()})
        self._path.parent.mkdir(parents=True, exist_ok=True)
        new = self._path.with_suffix(".new")
        write_anew(new, orjson.dumps(facts, option=orjson.OPT_INDENT_2))
        new.replace(self._path)
