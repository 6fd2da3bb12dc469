"""Find what was open in a process when it ended, and make records of it: the log has no other trace.

A request that hangs, or whose process was killed, has no record of its own. Its last `open_now` tells when it
began and in which span it was; so it lasts at least until then. Such records have the error `UNENDED`.

Many children of a program use one file in turn. So the end of a child is judged by the records between its
own `log_opened` and that of the next child, not by the end of the file.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from typing import Any, Final, NamedTuple

import msgspec

from sglang_instrument.analysis.reading.files import Control, File, ended_paths, newest_run_filter
from sglang_instrument.analysis.reading.liveness import Process
from sglang_instrument.analysis.reading.records.fields import ControlFields
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

#: The error of a record that was made from a report of open spans.
UNENDED: Final = "unended"
_SAME_SEC: Final = 1.0  # a watchdog looks about once a second


class Said(NamedTuple):
    """What a file says last of what is open, and when."""

    file: File
    spans: list[dict[str, Any]]
    at_us: int


class Ended(NamedTuple):
    """A process that ended with spans open, and its last report of them, with its time."""

    file: File
    pid: int
    spans: list[dict[str, Any]]
    at_us: int


def open_at_their_end(files: Sequence[File], gone: Collection[Process]) -> list[Ended]:
    """Return the processes that ended with spans open.

    Args:
        files: The files of a run.
        gone: The processes that are gone and did not close their logs.
    """
    counts = newest_run_filter(files)
    ended = []
    for file in files:
        controls = [control for control in file.controls if counts(file, control.run_id)]
        for process, reports in _parts(file, controls):
            if process in gone and (spans := reports.spans()):
                ended.append(Ended(file, process[2], spans, reports.at_us))
    return ended


def last_open_reports(files: Sequence[File]) -> list[tuple[File, Control]]:
    """Return the last `open_spans` record of each file whose step, or whose log, was not closed.

    Ages are those at the last `open_now`, which comes more often; what had ended by then is left out.
    """
    counts, ended = newest_run_filter(files), ended_paths(files)
    last = []
    for file in files:
        reports = _LastReports()
        for control in file.controls if file.path not in ended else ():
            if counts(file, control.run_id):
                reports.take(control)
        if reports.old is not None and (spans := reports.spans()):
            extra = ControlFields(spans=spans, open=reports.old.extra.open)
            last.append((file, Control(OPEN_SPANS, reports.old.run_id, reports.at_us, extra)))
    return last


def last_said(files: Sequence[File]) -> list[Said]:
    """Return what each file says last of what is open, where its step, or its log, was not closed."""
    counts, ended = newest_run_filter(files), ended_paths(files)
    said = []
    for file in files:
        reports = _LastReports()
        for control in file.controls if file.path not in ended else ():
            if counts(file, control.run_id):
                reports.take(control)
        said.append(Said(file, reports.spans(), reports.at_us))
    return [last for last in said if last.spans]


@dataclass(frozen=True)
class _NamedSpan:
    """A span as an `open_spans` names it, and when."""

    span: dict[str, Any]
    at_us: int

    def age_sec(self, at_us: int) -> float:
        """Return its age at a time, if it is still open."""
        return float(self.span.get("age_sec") or 0.0) + (at_us - self.at_us) / 1e6

    def with_age(self, at_us: int) -> dict[str, Any]:
        """Return it with its age at a time."""
        return self.span if at_us == self.at_us else {**self.span, "age_sec": round(self.age_sec(at_us), 3)}

    def may_be_open_beside(self, named: Sequence["_NamedSpan"], at_us: int) -> bool:
        """Return whether a later report does not name it, and need not."""
        if self.age_sec(at_us) > 2 * self.age_sec(self.at_us) + _SAME_SEC:
            return False
        return not any(self._is(span, at_us) for span in named)

    def _is(self, other: "_NamedSpan", at_us: int) -> bool:
        apart_sec = abs(self.age_sec(at_us) - other.age_sec(at_us))
        names = ("event", "request_id", "turn", "tool")
        return apart_sec < _SAME_SEC and all(self.span.get(key) == other.span.get(key) for key in names)


@dataclass
class _LastReports:
    """The last reports of a process: of old spans, with their places, and of what was open.

    An `open_spans` names a span when it is old enough, and again at each doubling of its age: of two spans
    that hang, each may have records of its own. An `open_now` counts the open spans of each event.
    """

    old: Control | None = None
    now: Control | None = None
    _reported: list[_NamedSpan] = field(default_factory=list)  # the last one first

    def take(self, control: Control) -> None:
        """Take the next control record of a file."""
        if control.event == OPEN_SPANS:
            named = [_NamedSpan(span, control.time_us) for span in dicts_in(control.extra.spans)]
            at_us = control.time_us
            earlier = (span for span in self._reported if span.may_be_open_beside(named, at_us))
            self.old, self._reported = control, [*named, *earlier]
        elif control.event == OPEN_NOW:
            self.now = control
        elif control.event in (STEP_CLOSED, LOG_CLOSED):
            self.old, self.now, self._reported = None, None, []

    @property
    def at_us(self) -> int:
        """When the newer of them was written."""
        return max((report.time_us for report in (self.old, self.now) if report is not None), default=0)

    def spans(self) -> list[dict[str, Any]]:
        """Return what was open by all reports, each span once: the oldest first, then what is not old yet."""
        at_us = self.at_us
        reported = sorted(self._still_counted(), key=lambda span: span.age_sec(at_us), reverse=True)
        old = [span.with_age(at_us) for span in reported]
        now = [innermost_span(named) for named in dicts_in(self.now and self.now.extra.oldest)]
        if old and self.now is not None and self.old is not None and self.now.time_us <= self.old.time_us:
            return old
        known = {(span.get("event"), span.get("request_id")) for span in old}
        return [*old, *(span for span in now if (span["event"], span.get("request_id")) not in known)]

    def _still_counted(self) -> list[_NamedSpan]:
        """Return as many reported spans of each event as an `open_now` after them counts, the last ones."""
        if self.now is None:
            return self._reported
        counts = self.now.extra.open if isinstance(self.now.extra.open, dict) else {}
        chosen: list[_NamedSpan] = []
        for span in self._reported:
            event = str(span.span.get("event"))
            count, is_of_last = counts.get(event), span.at_us == self._reported[0].at_us
            before = sum(str(other.span.get("event")) == event for other in chosen)
            is_counted = bool(count) and (is_of_last or not isinstance(count, int) or before < count)
            if is_counted or span.at_us >= self.now.time_us:
                chosen.append(span)
        return chosen


def dicts_in(values: Any) -> list[dict[str, Any]]:
    """Return the objects of a list; [] if it is none."""
    return [value for value in values if isinstance(value, dict)] if isinstance(values, list) else []


def innermost_span(named: dict[str, Any]) -> dict[str, Any]:
    """Return the innermost span of a request that an `open_now` names, as `open_spans` does."""
    span: dict[str, Any] = {
        key: named[key] for key in ("event", "tool", "request_id", "turn") if key in named
    }
    return {"event": "", **span, "age_sec": named.get("in_sec", named.get("age_sec"))}


def _parts(file: File, controls: Sequence[Control]) -> Iterator[tuple[Process, _LastReports]]:
    """Yield each process that wrote a file, with its last reports if nothing was closed after them."""
    process: Process | None = None
    reports = _LastReports()
    for control in controls:
        pid = control.extra.pid
        if control.event == LOG_OPENED and file.place is not None and pid is not None:
            opened = (file.place.stem, control.extra.host, pid)
            if process is not None and process != opened:
                yield process, reports
            reports = reports if process == opened else _LastReports()
            process = opened
        else:
            reports.take(control)
    if process is not None:
        yield process, reports


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


def unended_lines(report: ControlFields, at_us: int) -> list[Line]:
    """Return a record of each request that an `open_now` names, of the span in which it was, and of barriers.

    Args:
        report: The fields of the record, without what ended after it; `spans`: the barriers that are open.
        at_us: When it was written.
    """
    stamp = datetime.fromtimestamp(at_us / 1e6, timezone.utc).isoformat(timespec="microseconds")
    phases = report.phases if isinstance(report.phases, dict) else {}
    opened = report.open if isinstance(report.open, dict) else {}
    request_event = next((event for event in opened if _phase(event, phases) == "request"), None)
    lines = [
        _line(stamp, at_us, str(span.get("event")), phases, {}, span.get("age_sec"))
        for span in dicts_in(report.spans)
    ]
    for named in report.oldest if isinstance(report.oldest, list) else []:
        if not isinstance(named, dict) or named.get("request_id") is None:
            continue
        inner, age_sec = str(named.get("event")), named.get("age_sec")
        if request_event is not None:
            lines.append(_line(stamp, at_us, request_event, phases, named, age_sec))
        if inner != request_event:
            lines.append(_line(stamp, at_us, inner, phases, named, named.get("in_sec", age_sec)))
    return [line for line in lines if line is not None]


def _phase(event: str, phases: Mapping[str, Any]) -> str:
    return str(phases.get(event) or kind_of(event).phase)


def _line(
    stamp: str, at_us: int, event: str, phases: Mapping[str, Any], named: Mapping[str, Any], age_sec: Any
) -> Line | None:
    if not isinstance(age_sec, (int, float)) or not 0 <= age_sec < 1e9:
        return None
    is_request = _phase(event, phases) == "request"
    request_id, turn, tool = named.get("request_id"), named.get("turn"), named.get("tool")
    fields = (
        {}
        if request_id is None
        else {"request_id": request_id if isinstance(request_id, (str, int)) else str(request_id)}
    )
    if not is_request and isinstance(turn, int):
        fields["turn"] = turn
    if not is_request and tool is not None:
        fields["tool"] = str(tool)
    extra = msgspec.Raw(msgspec.json.encode(fields))
    phase = None if phases.get(event) is None else str(phases[event])
    begun_us = at_us - round(age_sec * 1e6)
    return Line(stamp, event, age_sec, extra, start_us=begun_us, error=UNENDED, phase=phase)
