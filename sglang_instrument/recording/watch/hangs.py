"""Report spans that do not end, with their stacks, while they hang: before the job is killed."""

import time
from collections.abc import Iterator
from typing import Any, Final

from sglang_instrument import schema
from sglang_instrument.recording.keep.disk import Disk
from sglang_instrument.recording.keep.encoder import LineEncoder
from sglang_instrument.recording.measure import open_spans
from sglang_instrument.recording.measure.scopes import Scope
from sglang_instrument.recording.measure.spans import OPEN, Span
from sglang_instrument.recording.safety.unpatched import sleep
from sglang_instrument.recording.watch.event_loop import check_heartbeats, still_blocked
from sglang_instrument.recording.watch.stacks import Owners, of_task, owners_of
from sglang_instrument.recording.watch.tool_names import tool_of

_LOOK_EVERY_SEC: Final = 1.0
_PART: Final = 1000  # spans checked at once, while other threads wait for the GIL
_FRAMES: Final = 8  # innermost frames of a span's stack
_MOST_REPORTED: Final = 50  # spans in one record; all of them are counted


class Watchdog:
    """Reports an open span when its age exceeds the limit, and again at each doubling of that age.

    Args:
        encoder: Makes the records.
        first_age_sec: The age at which an open span is first reported; from then on at each doubling.
    """

    def __init__(self, encoder: LineEncoder, first_age_sec: float) -> None:
        self._encoder = encoder
        self._first_ns = int(first_age_sec * 1e9)
        self._every_sec = min(_LOOK_EVERY_SEC, first_age_sec / 4)
        self._next_look = 0.0
        self._reported: dict[int, tuple[int, int]] = {}  # id -> (start, age at the next report)

    def look(self, disk: Disk) -> float:
        """Report old spans; called at each tick, checks the open spans about once a second.

        Returns:
            For how many seconds it need not be called; 0 while an event loop runs.
        """
        loop_runs = check_heartbeats()
        if loop_runs:
            for scope, fields in still_blocked():
                disk.write(scope, self._encoder.control(schema.OPEN_BLOCK, scope, fields), 0)
        now = time.monotonic()
        if now >= self._next_look:
            self._next_look = now + self._every_sec
            self._report_due(disk)
        return 0.0 if loop_runs else self._every_sec

    def _report_due(self, disk: Disk) -> None:
        due = self._due(time.perf_counter_ns())
        if due:
            open_spans.drop_interrupted()
            due = [span for span in due if id(span) in OPEN]
        by_scope: dict[Scope, list[Span]] = {}
        for span in due:
            by_scope.setdefault(self._encoder.scope_of(span.context), []).append(span)
        for scope, spans in by_scope.items():
            oldest = sorted(spans, key=lambda span: span.start)[:_MOST_REPORTED]
            owners = owners_of(span.task for span in oldest)
            extra = {"open": len(spans), "spans": [_describe(span, owners) for span in oldest]}
            disk.write(scope, self._encoder.control(schema.OPEN_SPANS, scope, extra), 0)

    def _due(self, now_ns: int) -> list[Span]:
        due = []
        for span in self._old(now_ns):
            key, age = id(span), now_ns - span.start
            start, next_age = self._reported.get(key, (span.start, self._first_ns))
            if start != span.start:  # another span at the same address
                next_age = self._first_ns
            if age >= next_age:
                while next_age <= age:
                    next_age *= 2
                self._reported[key] = (span.start, next_age)
                due.append(span)
        if len(self._reported) > len(OPEN):
            self._reported = {key: seen for key, seen in self._reported.items() if key in OPEN}
        return due

    def _old(self, now_ns: int) -> Iterator[Span]:
        """Yield the spans that are old enough for a report; give up the GIL after each part."""
        spans = list(OPEN.values())  # items() would hold the GIL for 20 times as long, to make tuples
        for begin in range(0, len(spans), _PART):
            for span in spans[begin : begin + _PART]:
                if now_ns - span.start < self._first_ns:
                    return  # and so are those that were entered later
                yield span
            sleep(0)


def _describe(span: Span, owners: Owners) -> dict[str, Any]:
    ids = dict(span.context.extra or {})
    ids.update({key: value for key, value in (span.extra or {}).items() if key in ("request_id", "turn")})
    tool = tool_of(span.extra)
    if tool is not None:
        ids["tool"] = tool
    stack = of_task(span.task, owners, span.thread, _FRAMES)
    return {"event": span.event, **ids, "age_sec": round(span.duration_sec, 3), **stack.fields()}
