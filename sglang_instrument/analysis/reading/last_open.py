"""Find what was open in a process when it ended, though other processes went on writing to its file.

Many children of a program use one file in turn. So the end of a child is judged by the records between its
own `log_opened` and that of the next child, not by the end of the file.
"""

import re
from collections.abc import Collection, Iterator, Sequence
from typing import Any, Final, NamedTuple

from sglang_instrument.analysis.reading.files import Control, File, ended_paths, newest_run_filter
from sglang_instrument.analysis.reading.liveness import Process
from sglang_instrument.analysis.reading.records.fields import RequestIds, all_typed
from sglang_instrument.analysis.reading.records.lines import Line
from sglang_instrument.schema import (
    LOG_CLOSED,
    LOG_OPENED,
    LOOP_BLOCK,
    OPEN_BLOCK,
    OPEN_NOW,
    OPEN_SPANS,
    STEP_CLOSED,
    kind_of,
)

#: The end of the name of a file that children of one program write in turn, such as "worker_0.host-c0".
_CHILDS: Final = re.compile(r"-c\d+$")
_REPORTS: Final = (OPEN_NOW, OPEN_SPANS)


class Ended(NamedTuple):
    """A process that ended with spans open, and its last report of them."""

    file: File
    pid: int
    spans: list[dict[str, Any]]


class LastReport:
    """Keeps the last `open_now` of a process while its file is read, and drops what ended after it."""

    def __init__(self) -> None:
        self._report: Control | None = None
        self._later: list[Sequence[Line]] = []
        self._pid: int | None = None

    def follow(self, lines: Sequence[Line]) -> None:
        """Take records that came after the last report."""
        if self._report is not None and lines:
            self._later.append(lines)

    def meet(self, control: Control) -> Control | None:
        """Take a control record; if it shows that a process has ended, return its last report."""
        if control.event == LOG_OPENED:
            pid, self._pid = self._pid, control.extra.pid
            return None if pid == self._pid else self.end()
        if control.event == OPEN_NOW:
            self._report, self._later = control, []
        elif control.event in (STEP_CLOSED, LOG_CLOSED):
            self._report, self._later = None, []
        return None

    def end(self) -> Control | None:
        """Return the last report of the process, without the requests and spans that ended after it."""
        report, self._report = self._report, None
        later, self._later = self._later, []
        named = [] if report is None or not isinstance(report.extra.oldest, list) else report.extra.oldest
        events = _later_events(later) if named else {}
        named = [span for span in named if isinstance(span, dict) and _is_open(span, events)]
        if report is None or not named:
            return None
        report.extra.oldest = named
        return report


def _later_events(later: list[Sequence[Line]]) -> dict[str | int | None, set[str]]:
    """Return the events of later records by request."""
    events: dict[str | int | None, set[str]] = {}
    for lines in later:
        all_fields = all_typed([line.extra for line in lines], RequestIds)
        for line, fields in zip(lines, all_fields, strict=True):
            events.setdefault(fields.request_id, set()).add(line.event)
    return events


def _is_open(named: dict[str, Any], events: dict[str | int | None, set[str]]) -> bool:
    """Return whether neither this span nor its request has a later record."""
    event, request_id = named.get("event"), named.get("request_id")
    age_sec = named.get("age_sec")
    if request_id is None or type(event) is not str or not isinstance(age_sec, (int, float)):
        return False
    later = events.get(request_id, ()) if isinstance(request_id, (str, int)) else ()
    return not any(name == event or kind_of(name).phase == "request" for name in later)


def open_at_their_end(files: Sequence[File], gone: Collection[Process]) -> list[Ended]:
    """Return the processes that ended with spans open, of those that write a file in turn.

    Args:
        files: The files of a run.
        gone: The processes that are gone and did not close their logs.
    """
    counts = newest_run_filter(files)
    ended = []
    for file in files:
        controls = [control for control in file.controls if counts(file, control.run_id)]
        for number, (process, last) in enumerate(parts := list(_parts(file, controls))):
            is_followed = number + 1 < len(parts) or (file.place and _CHILDS.search(file.place.stem))
            if is_followed and process in gone and last is not None:
                ended.append(Ended(file, process[2], _spans(last)))
    return [process for process in ended if process.spans]


def _parts(file: File, controls: Sequence[Control]) -> Iterator[tuple[Process, Control | None]]:
    """Yield each process that wrote a file, with its last report if nothing was closed after that."""
    process: Process | None = None
    last: Control | None = None
    for control in controls:
        pid = control.extra.pid
        if control.event == LOG_OPENED and file.place is not None and pid is not None:
            opened = (file.place.stem, control.extra.host, pid)
            if process is not None and process != opened:
                yield process, last
            process, last = opened, last if process == opened else None
        elif control.event in _REPORTS:
            last = control
        elif control.event in (STEP_CLOSED, LOG_CLOSED):
            last = None
    if process is not None:
        yield process, last


def _spans(report: Control) -> list[dict[str, Any]]:
    named = report.extra.oldest if report.event == OPEN_NOW else report.extra.spans
    return [span for span in named or [] if isinstance(span, dict)]


def still_blocked(files: Sequence[File]) -> list[tuple[File, Control]]:
    """Return the last `open_block` record of each file in which neither the block nor the step ended."""
    counts, ended = newest_run_filter(files), ended_paths(files)
    blocks = []
    for file in files:
        last: Control | None = None
        for control in file.controls if file.path not in ended else ():
            if counts(file, control.run_id) and control.event in (OPEN_BLOCK, LOOP_BLOCK, LOG_OPENED):
                last = control if control.event == OPEN_BLOCK else None
        if last is not None:
            blocks.append((file, last))
    return blocks


def place_of(span: dict[str, Any]) -> str | None:
    """Return the frame in which a reported span stands: the program's innermost, else the last."""
    place, stack = span.get("place"), span.get("stack")
    if isinstance(place, str):
        return place
    return str(stack[-1]) if isinstance(stack, list) and stack else None


def spoken(span: dict[str, Any]) -> str:
    """Return a reported span in words, such as "tool_call search of request r7"."""
    tool = f" {span['tool']}" if span.get("tool") else ""
    request = "" if span.get("request_id") is None else f" of request {span['request_id']}"
    return f"{span.get('event')}{tool}{request}"
