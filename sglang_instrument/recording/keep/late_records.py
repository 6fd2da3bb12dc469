"""Write the records of late atexit handlers; count those of `__del__` at the very end.

No hook of ours runs after these. So a late handler's record is written by its caller, to a disk that has just
taken all others. When the handlers are done, Python takes its modules apart: formatting a date then crashes
Python 3.13. So nothing is encoded any more, and system calls alone correct the count in `processes/`.
"""

import os
import sys
import time
from typing import Final

from sglang_instrument import schema
from sglang_instrument.recording.keep.encoder import LineEncoder
from sglang_instrument.recording.keep.files import Files
from sglang_instrument.recording.keep.selection import Selection
from sglang_instrument.recording.keep.write_through import CallersDisk, LineWriter
from sglang_instrument.recording.keep.writer import Writer
from sglang_instrument.recording.measure.context import count_dropped, on_scope_closed
from sglang_instrument.recording.measure.scopes import Scope
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
        # Kept here, because the names of modules may be gone at the very end.
        self._is_finalizing = sys.is_finalizing
        self._write_count = _CountWriter(files)

    def open(self, meanwhile: list[Span] | None = None) -> None:
        """Take the spans from now on, and those that came while the earlier writer was closed."""
        use_buffer(self)
        on_scope_closed(self.step_ended)
        for span in meanwhile or ():
            self.append(span)

    def append(self, span: Span, /) -> None:
        """Write the span; count it at the very end, or if late records have taken too long."""
        if self._is_finalizing():
            self.dropped_records += 1
            self._write_count(1)
            return
        if self._spent_sec > LONGEST_SEC:
            count_dropped(self._encoder.scope_of(span.context), 1)
            self.dropped_records += 1
        else:
            self._spans.append(span)
        self._alone(self._timed, "writing a record")

    def step_ended(self) -> None:
        """Write `step_closed` before the block's exit returns, except at the very end."""
        if not self._is_finalizing():
            super().step_ended()

    def _timed(self) -> None:
        begun = time.monotonic()
        self._empty_buffer()
        if begun >= self._next_news:
            self._next_news = begun + _NEWS_EVERY_SEC
            self.disk.files.describe_process(log_closed=True)
        self._spent_sec += time.monotonic() - begun


class _CountWriter:
    """Adds to the count of dropped records in the files in `processes/`, with nothing but system calls."""

    def __init__(self, files: Files) -> None:
        self._described = files.described
        self._calls = os.open, os.write, os.close
        self._flags = os.O_WRONLY | os.O_TRUNC
        self._more = 0

    def __call__(self, more: int) -> None:
        self._more += more
        open_file, write, close = self._calls
        for path, content in self._described.items():
            before, key, after = content.partition(b'"dropped": ')
            digits = after.partition(b"\n")[0].strip(b",")
            try:
                descriptor = open_file(path, self._flags)
                write(descriptor, before + key + b"%d" % (int(digits) + self._more) + after[len(digits) :])
                close(descriptor)
            except (OSError, ValueError):  # the folder is gone; or nothing that counts was described
                pass
