"""Write a file that shows that patches were applied in this process, even if it never records anything.

A process that records describes itself in `processes/`. A process whose code was patched describes itself in
`processes/reached/` before that, from a thread that ends when no more patches follow.
"""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

import orjson

from sglang_instrument.recording.keep.clock import HOST
from sglang_instrument.recording.measure.values import make_encodable
from sglang_instrument.recording.safety.notices import log_swallowed
from sglang_instrument.recording.safety.unpatched import Flag, RLock, Thread
from sglang_instrument.regular_files import write_anew

QUIET_SEC: Final = 2.0  # imports follow one another, each with patches; the file is written after the last
_EXIT_SEC: Final = 0.5  # at exit, for a process that ends at once


class Presence:
    """Writes the description of this process, up to two seconds after a patch was applied.

    Args:
        folder: The run's folder.
        describe: Returns the description of this process.
        is_described: Returns whether it has described itself as a child that recorded.
    """

    def __init__(
        self,
        folder: Path,
        describe: Callable[[], Mapping[str, Any]],
        is_described: Callable[[], bool] = lambda: False,
    ) -> None:
        self._folder = folder
        self._describe = describe
        self._is_described = is_described
        self._lock = RLock()  # a signal handler may import, and so patch, while the thread starts
        self._thread: Thread | None = None
        self._is_news = False
        self._ending = Flag()
        self._cancelled = False

    def tell(self) -> None:
        """Schedule the file: a patch was applied here, or failed."""
        with self._lock:
            self._is_news = True
            if self._thread is None and not self._ending.is_set():
                self._thread = Thread(self._run, "sglang_instrument-reached")
                try:
                    self._thread.start()
                except (RuntimeError, MemoryError) as error:  # no more threads, or the interpreter is going
                    self._thread = None
                    log_swallowed("saying that this process was reached", error)

    def end(self, wait_sec: float) -> None:
        """Write what is not written yet, as the process ends; wait at most `wait_sec`, and at most 0.5 s."""
        self._ending.set()
        thread = self._thread
        if thread is not None and thread.is_alive():
            thread.join(min(wait_sec, _EXIT_SEC))

    def cancel(self) -> None:
        """Write nothing any more: the patches are being removed."""
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
                if not self._is_described():
                    self._write()
                if self._is_described():  # meanwhile
                    forget(self._folder)
            except Exception as error:  # for a disk that cannot be written, `Files` logs the lost records
                log_swallowed("saying that this process was reached", error)

    def _write(self) -> None:
        facts = make_encodable({"role": None, "rank": None, **self._describe()})
        path = _path_in(self._folder)
        path.parent.mkdir(parents=True, exist_ok=True)
        new = path.with_suffix(".new")
        write_anew(new, orjson.dumps(facts, option=orjson.OPT_INDENT_2))
        new.replace(path)


def forget(folder: Path) -> None:
    """Delete the file of this process, which has described itself as one that recorded."""
    _path_in(folder).unlink(missing_ok=True)


def _path_in(folder: Path) -> Path:
    return folder / "processes" / "reached" / f"{HOST}-{os.getpid()}.json"
