"""List the spans that were open when a log ended: the last `open_spans` of files without a closing record."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sglang_instrument.analysis.reading.files import last_open_reports
from sglang_instrument.schema import kind_of

if TYPE_CHECKING:
    from sglang_instrument.analysis.run.opening import Run


@dataclass(frozen=True)
class UnendedSpan:
    """A span without an end. Times are microseconds on its worker's clock; `seen_us` is its last report."""

    step: int
    validate: bool
    worker: int
    event: str
    phase: str
    request_id: str | None
    turn: int | None
    age_sec: float
    begun_us: int
    seen_us: int
    place: str | None


def open_spans(run: Run, step: int | None = None, validate: bool | None = None) -> list[UnendedSpan]:
    """Return the spans that never ended, of one step or of all, the oldest of a worker first."""
    opened = []
    for file, control in last_open_reports(run.files):
        place: Any = file.place
        if place is None or place.step is None or (step is not None and place.step != step):
            continue
        if validate is None or bool(place.validate) == validate:
            spans = [span for span in control.extra.spans or [] if isinstance(span, dict)]
            opened += [_opened(place, control.time_us, span) for span in spans]
    return sorted(opened, key=lambda span: (span.validate, span.step, span.worker, -span.age_sec))


def _opened(place: Any, seen_us: int, span: dict[str, Any]) -> UnendedSpan:
    event, age_sec = str(span.get("event")), float(span.get("age_sec") or 0.0)
    stack, turn, asked = span.get("stack"), span.get("turn"), span.get("request_id")
    return UnendedSpan(
        step=place.step,
        validate=bool(place.validate),
        worker=place.worker,
        event=event,
        phase=kind_of(event).phase,
        request_id=None if asked is None else str(asked),
        turn=turn if isinstance(turn, int) else None,
        age_sec=age_sec,
        begun_us=seen_us - int(age_sec * 1e6),
        seen_us=seen_us,
        place=str(stack[-1]) if isinstance(stack, list) and stack else None,
    )
