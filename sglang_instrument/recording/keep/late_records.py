"""Write the records of late atexit handlers, and of `__del__` at the very end.

No hook runs after these, and Python stops our threads before the last of them. So each record is written by
its caller, to a disk that has just taken all others.
"""

import sys
import time
from typing import Final

from sglang_instrument import schema
from sglang_instrument.recording.keep.encoder import LineEncoder
from sglang_instrument.recording.keep.files import Files
from sglang_instrument.recording.keep.selection import Selection
from sglang_instrument.recording.keep.write_through import CallersDisk, LineWriter
from sglang_instrument.recording.keep.writer import Writer
from sglang_instrument.recording.measure.context import Scope, count_dropped, on_scope_closed
from sglang_instrument.recording.measure.spans import Span, use_buffer

#: How often the file in `processes/` is rewritten at most.
_NEWS_EVERY_SEC: Final = 0.1
#: Late records may take this long in all; later ones are dropped and counted.
LONGEST_SEC: Final = 1.0


class LateDisk(CallersDisk):
    """Writes each line with a `log_closed` after it: no more is known to follow."""

    def __init__(self, files: Files, encoder: LineEncoder) -> None:
        super().__init__(files)
        self._encoder = encoder

    def write(self, scope: Scope, lines: bytes, records: int) -> None:
        """Append lines, and `log_closed`, to the scope's file."""
        super().write(scope, lines + self._encoder.control(schema.LOG_CLOSED, scope, {}), records)


class LateWriter(LineWriter):
    """The buffer after the process's end.

    Args:
        files: The files of the process, closed.
        encoder: Makes the lines.
        selection: Decides which records are kept; None keeps all.
        earlier: The writer until now, whose counts go on here.
    """

    def __init__(
        self, files: Files, encoder: LineEncoder, selection: Selection | None, earlier: Writer
    ) -> None:
        super().__init__(LateDisk(files, encoder), encoder, lambda disk: 0.0, selection)
        self.recorded, self.changed_records = earlier.recorded, earlier.changed_records
        self.dropped_records = earlier.dropped_records
        self._spent_sec = 0.0
        self._next_news = 0.0

    def open(self) -> None:
        """Take the spans from now on."""
        use_buffer(self)
        on_scope_closed(self.step_ended)

    def append(self, span: Span, /) -> None:
        """Write the span, or count it if late records have taken too long."""
        if self._spent_sec > LONGEST_SEC:
            count_dropped(self._encoder.scope_of(span.context), 1)
            self.dropped_records += 1
        else:
            self._spans.append(span)
        self._alone(self._timed, "writing a record")

    def _timed(self) -> None:
        begun = time.monotonic()
        self._empty_buffer()
        if begun >= self._next_news and not sys.is_finalizing():  # then, nothing can be imported any more
            self._next_news = begun + _NEWS_EVERY_SEC
            self.disk.files.describe_process(log_closed=True)
        self._spent_sec += time.monotonic() - begun
