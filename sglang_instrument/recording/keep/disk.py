"""The thread that owns the disk, which may hang: what waits for it is bounded in bytes."""

import queue
from collections.abc import Callable

from sglang_instrument.recording.keep.files import Files
from sglang_instrument.recording.measure.context import Scope, count_dropped
from sglang_instrument.recording.safety.notices import notice, swallowed
from sglang_instrument.recording.safety.own_threads import OwnThread

Job = Callable[[], object]


class Disk:
    """A thread that does what is put to it, in order; what waits is bounded in bytes."""

    def __init__(self, files: Files, limit_bytes: int) -> None:
        self.files = files
        self.dropped_records = 0
        self._ended = False
        self._limit_bytes = limit_bytes
        self._bytes_put = 0  # by the encoder's thread alone
        self._bytes_done = 0  # by this one's alone: two counters need no lock
        self._waiting: queue.SimpleQueue[Job] = queue.SimpleQueue()
        self._thread = OwnThread(self._run, "sglang_instrument-disk")

    def start(self, at_once: bool = False) -> bool:
        """Start the thread, as `OwnThread.start` does; return whether it was started."""
        return self._thread.start(at_once)

    def join(self, ends: float) -> None:
        """Wait until the thread has ended, until `time.monotonic()` is `ends` at most."""
        self._thread.join(ends)

    def write(self, scope: Scope, lines: bytes, records: int) -> None:
        """Append lines to the scope's file, later; drop them if too much waits already."""
        if self._bytes_put - self._bytes_done + len(lines) > self._limit_bytes:
            count_dropped(scope, records)
            self.dropped_records += records
            notice("disk too slow", "the disk does not keep up: new records are dropped and counted")
            return
        self._bytes_put += len(lines)

        def job() -> None:
            self.files.write(scope, lines, records)
            self._bytes_done += len(lines)

        self._waiting.put(job)

    def do(self, job: Job) -> None:
        """Run `job` after everything that was put before."""
        self._waiting.put(job)

    def do_what_waits(self) -> None:
        """Do all jobs on the caller's thread if the disk's thread could not be started."""
        if not self._thread.started:
            waiting = [True]
            self._waiting.put(waiting.clear)  # _do_next() would block on an empty queue
            while waiting:
                self._do_next()

    def end(self) -> None:
        """End the thread after everything that was put before."""
        self._waiting.put(self._end)
        self.do_what_waits()

    def _end(self) -> None:
        self._ended = True

    def _run(self) -> None:
        while not self._ended:
            self._do_next()
        self._waiting = queue.SimpleQueue()  # nobody will do the rest, and it may refer to this

    def _do_next(self) -> None:
        try:
            self._waiting.get()()
        except Exception as error:
            swallowed("writing the log", error)
