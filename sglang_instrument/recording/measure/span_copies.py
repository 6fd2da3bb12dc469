"""Rebuild a compiled span that a program has copied or pickled, for example within an agent's state."""

from typing import Any

from sglang_instrument.recording.measure.spans import Span


def restored(
    event: str,
    extra: dict[str, Any] | None,
    phase: str | None,
    thread: int,
    start: int,
    end: int,
    error: str | None,
) -> Span:
    """Return a copy of a span with its fields and times, without task and context."""
    made = Span(event, extra, phase)
    made.thread, made.start, made.end, made.error = thread, start, end, error
    return made
