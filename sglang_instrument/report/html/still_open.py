"""List the spans that were open when a log ended: the last report of files without a closing record."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sglang_instrument.analysis.reading.last_open import last_open_reports, place_of
from sglang_instrument.schema import kind_of

if TYPE_CHECKING:
    from sglang_instrument.analysis.reading.files import File
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
    for file, at_us, spans in _last_reports(run):
        place: Any = file.place
        if place is None or place.step is None or (step is not None and place.step != step):
            continue
        if validate is None or bool(place.validate) == validate:
            opened += [_opened(place, at_us, span) for span in spans]
    return sorted(opened, key=lambda span: (span.validate, span.step, span.worker, -span.age_sec))


def _last_reports(run: Run) -> Iterator[tuple[File, int, list[dict[str, Any]]]]:
    """Yield what files say last of what is open, and when: also of processes that were killed early."""
    ended = {end.file.path for end in run.open_at_end}
    for file, control in last_open_reports(run.files):
        if file.path not in ended:
            spans = [span for span in control.extra.spans or [] if isinstance(span, dict)]
            yield file, control.time_us, spans
    for end in run.open_at_end:
        yield end.file, end.at_us, end.spans


def _opened(place: Any, seen_us: int, span: dict[str, Any]) -> UnendedSpan:
    event, age_sec = str(span.get("event")), float(span.get("age_sec") or 0.0)
    turn, asked = span.get("turn"), span.get("request_id")
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
        place=place_of(span),
    )
