"""Write each record before its span's exit returns, for `durability="line"`: a kill loses no finished span.

Only in this mode does training wait for the disk.
"""

from collections.abc import Callable

from sglang_instrument.recording.keep.disk import Disk, Job
from sglang_instrument.recording.keep.encoder import LineEncoder
from sglang_instrument.recording.keep.files import Files
from sglang_instrument.recording.keep.selection import Selection
from sglang_instrument.recording.keep.writer import Writer
from sglang_instrument.recording.measure.scopes import Scope
from sglang_instrument.recording.measure.spans import Span
from sglang_instrument.recording.safety.notices import log_swallowed
from sglang_instrument.recording.safety.own_threads import OneAtATime
from sglang_instrument.recording.safety.unpatched import Flag, RLock


class CallersDisk(Disk):
    """Runs each job at once on the calling thread, one thread at a time."""

    def __init__(self, files: Files) -> None:
        super().__init__(files, limit_bytes=0)
        self._one_at_a_time = RLock()

    @property
    def started(self) -> bool:
        """True: each caller does the work."""
        return True

    def start(self, at_once: bool = False) -> bool:
        """Start nothing."""
        return True

    def do_what_waits(self) -> None:
        """Do nothing: nothing waits."""

    def end(self) -> None:
        """End nothing."""

    def write(self, scope: Scope, lines: bytes, records: int) -> None:
        """Append lines to the scope's file."""
        self.do(lambda: self.files.write(scope, lines, records))

    def do(self, job: Callable[[], object]) -> None:
        """Run `job`."""
        try:
            with self._one_at_a_time:
                job()
        except BaseException as error:
            log_swallowed("writing the log", error)


class LineWriter(Writer):
    """A buffer whose append writes everything. The encoder's thread remains for the watchdog and `flush`."""

    def __init__(
        self,
        disk: Disk,
        encoder: LineEncoder,
        watch: Callable[[Disk], float],
        selection: Selection | None = None,
    ) -> None:
        super().__init__(disk, encoder, watch, selection)
        self._buffer = self
        self._all_closed = None  # no record waits
        self._one_at_a_time = OneAtATime()

    def append(self, span: Span, /) -> None:
        """Write the span, and spans that other threads have appended meanwhile."""
        self._spans.append(span)
        self._alone(self._empty_buffer, "writing a record")

    def step_ended(self) -> None:
        """Write `step_closed` before the block's exit returns."""
        self._alone(self._write, "ending a step")

    def wake(self) -> None:
        """Do nothing: no record waits."""

    def _may_rest(self) -> bool:
        """Never rest: in this mode no span would wake the thread."""
        return False

    def _tick(self, woken: bool) -> None:
        self._alone(lambda: super(LineWriter, self)._tick(woken), "encoding the log")

    def _start_or_write(self, job: Job | None, done: Flag, ends: float) -> None:
        self._alone(lambda: super(LineWriter, self)._start_or_write(job, done, ends), "writing the log")

    def _alone(self, act: Callable[[], object], doing: str) -> None:
        """Run `act` while no other thread writes.

        A signal handler or finalizer may record during this thread's write: the interrupted write, or the
        next one, then also writes that record.
        """
        self._one_at_a_time.do(act, doing)
