"""The thread that owns the disk, which may hang: what waits for it is bounded in bytes."""

import queue
import threading
from collections.abc import Callable

from sglang_instrument.recording.context import Scope, count_dropped
from sglang_instrument.recording.files import Files
from sglang_instrument.recording.lines import Lines
from sglang_instrument.recording.notices import notice, swallowed

Job = Callable[[], object]


class Disk:
    """A thread that does what is put to it, in order; what waits is bounded in bytes."""

    def __init__(self, files: Files, limit_bytes: int) -> None:
        self.files = files
        self.dropped_records = 0
        self._limit = limit_bytes
        self._bytes_put = 0  # by the encoder's thread alone
        self._bytes_done = 0  # by this one alone: two counters need no lock
        self._ended = False
        self._jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, name="sglang_instrument-disk", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def write(self, scope: Scope, lines: Lines, records: int) -> None:
        """Append lines to the scope's file, later; drop them if too much waits already."""
        if self._bytes_put - self._bytes_done + len(lines) > self._limit:
            count_dropped(scope, records)
            self.dropped_records += records
            notice("disk too slow", "the disk does not keep up: new records are dropped and counted")
            return
        self._bytes_put += len(lines)

        def job() -> None:
            self.files.write(scope, lines, records)
            self._bytes_done += len(lines)

        self._jobs.put(job)

    def do(self, job: Job) -> None:
        """Run `job` after everything that was put before."""
        self._jobs.put(job)

    def end(self) -> None:
        """End the thread after everything that was put before."""
        self._jobs.put(self._end)

    def _end(self) -> None:
        self._ended = True

    def _run(self) -> None:
        while not self._ended:
            job = self._jobs.get()
            try:
                job()
            except Exception as error:
                swallowed("writing the log", error)
