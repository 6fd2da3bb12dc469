"""The thread that owns the disk, which may hang: what waits for it is bounded in bytes."""

import queue
import threading
from collections.abc import Callable

from sglang_instrument import native
from sglang_instrument.recording.context import Scope, count_dropped
from sglang_instrument.recording.files import Files
from sglang_instrument.recording.lines import Lines
from sglang_instrument.recording.notices import notice, swallowed

Job = Callable[[], object]


class Jobs:
    """What waits for the disk's thread, in order.

    Compiled (`native/jobs.pxi`), it appends to files that are open without the GIL, and tells `files` of it
    when it is asked.
    """

    def __init__(self, files: Files, limit_bytes: int) -> None:
        self._files = files
        self._limit = limit_bytes
        self._bytes_put = 0  # by the encoder's thread alone
        self._bytes_done = 0  # by the disk's alone: two counters need no lock
        self._waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()

    def append(self, scope: Scope, lines: Lines, records: int) -> bool:
        """Have lines appended to the scope's file; return False if too much waits already."""
        if self._bytes_put - self._bytes_done + len(lines) > self._limit:
            return False
        self._bytes_put += len(lines)

        def job() -> None:
            self._files.write(scope, lines, records)
            self._bytes_done += len(lines)

        self._waiting.put(job)
        return True

    def put(self, what: Job) -> None:
        """Have `what` called."""
        self._waiting.put(what)

    def do_next(self) -> None:
        """Do the next job; wait until there is one."""
        self._waiting.get()()

    def end(self) -> None:
        """Let go of what nobody will do any more."""
        self._waiting = queue.SimpleQueue()


native.take_over(globals(), "lines", "Jobs")


class Disk:
    """A thread that does what is put to it, in order; what waits is bounded in bytes."""

    def __init__(self, files: Files, limit_bytes: int) -> None:
        self.files = files
        self.dropped_records = 0
        self._ended = False
        self._jobs = Jobs(files, limit_bytes)
        self._thread = threading.Thread(target=self._run, name="sglang_instrument-disk", daemon=True)

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    def write(self, scope: Scope, lines: Lines, records: int) -> None:
        """Append lines to the scope's file, later; drop them if too much waits already."""
        if not self._jobs.append(scope, lines, records):
            count_dropped(scope, records)
            self.dropped_records += records
            notice("disk too slow", "the disk does not keep up: new records are dropped and counted")

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
            try:
                self._jobs.do_next()
            except Exception as error:
                swallowed("writing the log", error)
        self._jobs.end()
