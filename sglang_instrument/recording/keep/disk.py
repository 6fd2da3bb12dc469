"""Write on the disk's own thread, because a disk may hang; the queue of lines is limited in bytes."""

from collections.abc import Callable
from queue import SimpleQueue
from typing import Final

from sglang_instrument.recording.keep.files import Files
from sglang_instrument.recording.measure.context import count_dropped
from sglang_instrument.recording.measure.scopes import Scope
from sglang_instrument.recording.safety.notices import log_swallowed, notice
from sglang_instrument.recording.safety.own_threads import OwnThread
from sglang_instrument.recording.safety.unpatched import original

Job = Callable[[], object]
_Queue: Final = original("queue", "SimpleQueue")


class Disk:
    """A thread that runs queued jobs in order; the lines that wait in the queue are limited in bytes."""

    def __init__(self, files: Files, limit_bytes: int) -> None:
        self.files = files
        self.dropped_records = 0
        self._ended = False
        self._limit_bytes = limit_bytes
        self._bytes_put = 0  # only the encoder's thread changes this one
        self._bytes_done = 0  # only the disk's thread changes this one: so neither needs a lock
        self._waiting: SimpleQueue[Job] = _Queue()
        self._thread = OwnThread(self._run, "sglang_instrument-disk")

    @property
    def started(self) -> bool:
        """Whether the thread was started; until then, `do_what_waits` does its work."""
        return self._thread.started

    def start(self, at_once: bool = False) -> bool:
        """Start the thread, as `OwnThread.start` does; return whether it was started."""
        return self._thread.start(at_once)

    def join(self, ends: float) -> None:
        """Wait for the thread's end, at most until `time.monotonic()` reaches `ends`."""
        self._thread.join(ends)

    def write(self, scope: Scope, lines: bytes, records: int) -> None:
        """Queue lines for the scope's file; drop them if the queue is over its limit."""
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
        """Run `job` after all jobs that are already queued."""
        self._waiting.put(job)

    def do_what_waits(self) -> None:
        """Run all queued jobs on the caller's thread if the disk's thread could not be started."""
        if not self._thread.started:
            waiting = [True]
            self._waiting.put(waiting.clear)  # _do_next() would block on an empty queue
            while waiting:
                self._do_next()

    def end(self) -> None:
        """End the thread after all jobs that are already queued."""
        self._waiting.put(self._end)
        self.do_what_waits()

    def _end(self) -> None:
        self._ended = True

    def _run(self) -> None:
        while not self._ended:
            self._do_next()
        self._waiting = _Queue()  # the remaining jobs never run, and may refer to this object

    def _do_next(self) -> None:
        try:
            self._waiting.get()()
        except Exception as error:
            log_swallowed("writing the log", error)
