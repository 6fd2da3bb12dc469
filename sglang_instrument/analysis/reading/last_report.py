"""Keep the last report of what is open in a process while its file is read."""

from collections.abc import Sequence
from typing import Any

from sglang_instrument.analysis.reading.files import Control
from sglang_instrument.analysis.reading.last_open import dicts_in, innermost_span
from sglang_instrument.analysis.reading.records.fields import ControlFields, RequestIds, all_typed
from sglang_instrument.analysis.reading.records.lines import Line
from sglang_instrument.schema import LOG_CLOSED, LOG_OPENED, OPEN_NOW, OPEN_SPANS, STEP_CLOSED, kind_of

#: The event and the request of a span.
_Key = tuple[str, str | int | None]


class LastReport:
    """Keeps the last `open_now` of a process while its file is read, and drops what ended after it.

    `open_spans` alone tells the ages of barriers, which are of no request. Of a process that writes no
    `open_now`, what it tells of requests counts, too.

    Args:
        opened: The last `log_opened` before the first line that is read.
    """

    def __init__(self, opened: Control | None = None) -> None:
        self._report: Control | None = None
        self._writes_open_now = False
        self._later: list[Sequence[Line]] = []
        self._old = _OldSpans()
        self._pid: int | None = None if opened is None else opened.extra.pid

    def follow(self, lines: Sequence[Line]) -> None:
        """Take records that came after the last report."""
        self._old.follow(lines)
        if self._report is not None and self._writes_open_now and lines:
            self._later.append(lines)

    def meet(self, control: Control) -> Control | None:
        """Take a control record; if it shows that a process has ended, return its last report."""
        if control.event == LOG_OPENED:
            pid, self._pid = self._pid, control.extra.pid
            return None if pid == self._pid else self.end()
        if control.event == OPEN_NOW:
            self._report, self._later, self._writes_open_now = control, [], True
        elif control.event == OPEN_SPANS:
            self._old.take(control, only_barriers=self._writes_open_now)
            if not self._writes_open_now:
                self._report = control
        elif control.event in (STEP_CLOSED, LOG_CLOSED):
            self._clear()
        return None

    def end(self) -> Control | None:
        """Return the last report of the process, without the requests and spans that ended after it.

        It has the form of an `open_now`, with the barriers as its `spans`. A report of which all has ended
        still tells until when the step went on.
        """
        report, later, old = self._report, self._later, self._old
        self._clear()
        if report is None:
            return None
        barriers = old.barriers(report.time_us)
        if report.event == OPEN_SPANS:
            fields = ControlFields(open=old.events(), oldest=old.requests(report.time_us), spans=barriers)
            return Control(OPEN_NOW, report.run_id, report.time_us, fields)
        events = _later_events(later) if report.extra.oldest else {}
        report.extra.oldest = [span for span in dicts_in(report.extra.oldest) if _is_open(span, events)]
        opened = report.extra.open if isinstance(report.extra.open, dict) else {}
        report.extra.spans = [span for span in barriers if opened.get(span["event"])]
        return report

    def _clear(self) -> None:
        self._report, self._later, self._old = None, [], _OldSpans()


class _OldSpans:
    """The spans that `open_spans` named, at the age of 30 s, 60 s ..., and that have no record since."""

    def __init__(self) -> None:
        self._begun_us: dict[_Key, int] = {}
        self._spans: dict[_Key, dict[str, Any]] = {}

    def take(self, control: Control, only_barriers: bool) -> None:
        """Take what a report names."""
        for span in dicts_in(control.extra.spans):
            event, request_id, age_sec = span.get("event"), span.get("request_id"), span.get("age_sec")
            if not isinstance(event, str) or not isinstance(age_sec, (int, float)):
                continue
            is_wanted = kind_of(event).phase == "barrier" or not only_barriers
            if is_wanted and (request_id is None or isinstance(request_id, (str, int))):
                self._begun_us[event, request_id] = control.time_us - round(age_sec * 1e6)
                self._spans[event, request_id] = span

    def follow(self, lines: Sequence[Line]) -> None:
        """Take records: their spans are open no longer, nor is any of a request that has ended."""
        events = {event for event, _ in self._spans}
        ended = [line for line in lines if line.event in events or _ends_request(line)] if events else []
        for line, fields in zip(ended, all_typed([line.extra for line in ended], RequestIds), strict=True):
            self._drop(fields.request_id, None if _ends_request(line) else line.event)

    def _drop(self, request_id: str | int | None, event: str | None) -> None:
        """Drop a span of a request, or all of them; of no request, the event alone tells."""
        keys = [key for key in self._spans if key[1] == request_id and event in (None, key[0])]
        for key in keys if event is not None or request_id is not None else ():
            del self._spans[key], self._begun_us[key]

    def events(self) -> dict[str, int]:
        """Return the events that are open."""
        return dict.fromkeys((event for event, _ in self._spans), 1)

    def barriers(self, at_us: int) -> list[dict[str, Any]]:
        """Return the barriers with their ages at a time."""
        return [
            {"event": key[0], "age_sec": self._age_sec(key, at_us)}
            for key in self._spans
            if kind_of(key[0]).phase == "barrier"
        ]

    def requests(self, at_us: int) -> list[dict[str, Any]]:
        """Return the requests, each with its innermost span, as an `open_now` names them."""
        ages: dict[str | int, list[tuple[float, dict[str, Any]]]] = {}
        for key, span in self._spans.items():
            if key[1] is not None:
                ages.setdefault(key[1], []).append((self._age_sec(key, at_us), span))
        named = []
        for spans in ages.values():
            outer_sec = max(age_sec for age_sec, _ in spans)
            inner_sec, inner = min(spans, key=lambda aged: aged[0])
            named.append({**innermost_span(inner), "age_sec": outer_sec, "in_sec": inner_sec})
        return named

    def _age_sec(self, key: tuple[str, str | int | None], at_us: int) -> float:
        return (at_us - self._begun_us[key]) / 1e6


def _ends_request(line: Line) -> bool:
    return line.duration_sec is not None and kind_of(line.event).phase == "request"


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
