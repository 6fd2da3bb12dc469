"""Capture records in a test, as dicts with the keys of a line, without a file or a thread."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, overload

import orjson

from sglang_instrument.recording.keep.clock import Clock
from sglang_instrument.recording.keep.encoder import LineEncoder
from sglang_instrument.recording.measure import spans, tasks
from sglang_instrument.recording.measure.spans import Span
from sglang_instrument.recording.watch import event_loop


class Records(Sequence[dict[str, Any]]):
    """The records so far, in the order in which they ended."""

    def __init__(self) -> None:
        self._spans: list[Span] = []
        self._made: list[dict[str, Any]] = []
        self._encoder = LineEncoder(Clock())

    def append(self, span: Span, /) -> None:
        """Add a finished span."""
        self._spans.append(span)

    def of(self, event: str) -> list[dict[str, Any]]:
        """Return the records of one event."""
        return [record for record in self if record["event"] == event]

    @overload
    def __getitem__(self, index: int) -> dict[str, Any]: ...

    @overload
    def __getitem__(self, index: slice) -> list[dict[str, Any]]: ...

    def __getitem__(self, index: int | slice) -> dict[str, Any] | list[dict[str, Any]]:
        return self._all()[index]

    def __len__(self) -> int:
        return len(self._spans)

    def _all(self) -> list[dict[str, Any]]:
        for span in self._spans[len(self._made) :]:
            for _, line, _, _ in self._encoder.encode_all([span]):
                self._made.append(orjson.loads(bytes(line)))
        return self._made


@contextmanager
def records(*, watch_loops: bool = False) -> Iterator[Records]:
    """Capture what the block records: `with records() as seen: ...; assert seen.of("score")`.

    During the block nothing is written to files. Patches are not applied: only spans, events, and functions
    under `@instrument` are captured.

    Args:
        watch_loops: Whether event loops get a heartbeat; a busy machine may then add `event_loop_lag`.
    """
    before = spans.current_buffer()
    captured = Records()
    spans.use_buffer(captured)
    spans.know_tasks(event_loop.task_seen if watch_loops else tasks.unseen)
    try:
        yield captured
    finally:
        event_loop.forget_heartbeats()
        spans.use_buffer(before)
        if before is spans.OFF:
            spans.ignore_tasks()
