"""Write each record before its span's exit returns, for `durability="line"`: a kill loses nothing that ended.

This is the one mode in which training waits for the disk, because somebody asked for it.
"""

from _thread import RLock
from collections.abc import Callable
from threading import Event

from sglang_instrument.recording.keep.disk import Disk, Job
from sglang_instrument.recording.keep.encoder import LineMaker
from sglang_instrument.recording.keep.files import Files
from sglang_instrument.recording.keep.selection import Selection
from sglang_instrument.recording.keep.writer import Writer
from sglang_instrument.recording.measure.context import Scope
from sglang_instrument.recording.measure.spans import Span
from sglang_instrument.recording.safety.notices import swallowed
from sglang_instrument.recording.safety.own_threads import OneAtATime


class CallersDisk(Disk):
    """Does what is put to it at once, on the thread that puts it: one thread at a time."""

    def __init__(self, files: Files) -> None:
        super().__init__(files, limit_bytes=0)
        self._one_at_a_time = RLock()

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
            swallowed("writing the log", error)


class LineWriter(Writer):
    """A buffer whose append empties it. The thread remains for what hangs, and for `flush`."""

    def __init__(
        self,
        disk: Disk,
        maker: LineMaker,
        watch: Callable[[Disk], float],
        selection: Selection | None = None,
    ) -> None:
        super().__init__(disk, maker, watch, selection)
        self._buffer = self
        self._all_closed = None  # nothing waits
        self._one_at_a_time = OneAtATime()

    def append(self, span: Span, /) -> None:
        """Write the span, and what other threads appended meanwhile."""
        self._spans.append(span)
        self._alone(self._empty_buffer, "writing a record")

    def step_ended(self) -> None:
        """Write `step_closed` before the block's exit returns."""
        self._alone(self._write, "ending a step")

    def wake(self) -> None:
        """Do nothing: nothing waits."""

    def _may_rest(self) -> bool:
        """Rest never: no span would wake the thread."""
        return False

    def _tick(self, woken: bool) -> None:
        self._alone(lambda: super(LineWriter, self)._tick(woken), "encoding the log")

    def _start_or_write(self, job: Job | None, done: Event, ends: float) -> None:
        self._alone(lambda: super(LineWriter, self)._start_or_write(job, done, ends), "writing the log")

    def _alone(self, act: Callable[[], object], doing: str) -> None:
        """Run `act` while no other thread does.

        A signal handler or finalizer may record in the middle of this same thread's write: what it appended
        is written when that write goes on to the rest of the buffer, or by the next one.
        """
        self._one_at_a_time.do(act, doing)
