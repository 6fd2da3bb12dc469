"""Find what a run left unfinished: spans that never ended, and workers that wrote no record."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from sglang_instrument.analysis.reading.files import File
from sglang_instrument.analysis.reading.last_open import last_open_reports, last_said, place_of
from sglang_instrument.analysis.reading.liveness import sightings_of
from sglang_instrument.analysis.run.losses import used_runs
from sglang_instrument.analysis.run.opening import Run
from sglang_instrument.schema import kind_of

_OF_SPANS: Final = ("event", "tool", "request_id", "turn", "age_sec", "place", "stack")


def unended_spans(run: Run) -> list[dict[str, Any]]:
    """Return the spans that the last report of a file names, where its step did not end.

    Those of a child that was killed are there, too, though other children went on writing to its file.

    Returns:
        file; pid of such a child, None for others; event; tool, None where none was named; request_id and
        turn, None where none was bound; age_sec when it was reported; place: the program's innermost frame,
        outside the standard library and installed packages; stack: the frames in which it stood, the
        innermost last.
    """
    reports = [
        (file, None, control.extra.spans or [])
        for file, control in last_open_reports(run.files)
        if file.path not in {ended.file.path for ended in run.open_at_end}
    ]
    return [
        {"file": file.path, "pid": pid, **{key: span.get(key) for key in _OF_SPANS}}
        for file, pid, spans in [*reports, *((end.file, end.pid, end.spans) for end in run.open_at_end)]
        for span in spans
        if isinstance(span, dict)
    ]


def workers_without_records(run: Run) -> list[str]:
    """Return the workers that are in `processes/` and wrote no record, such as "worker_3"."""
    written = {place.stem for file in run.files if (place := file.place) is not None and any(file.records)}
    described = sorted(path.stem for path in (run.home / "processes").glob("worker_*.json"))
    return [name for name in described if name not in written]


def sightings(run: Run) -> list[dict[str, Any]]:
    """Return what followers saw of processes that could not say it themselves: `sightings.sightings_of`."""
    return sightings_of(run.home, set(run.files.members(used_runs(run.files))))


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


def spans_of_request(run: Run, request: Mapping[str, Any]) -> list[UnendedSpan]:
    """Return the spans of a request that never ended, the oldest first; `request` is a row of its table."""
    if request["step"] is None or request["start_us"] is None:
        return []
    return [
        span
        for span in open_spans(run, request["step"], request["validate"])
        if (span.worker, span.request_id) == (request["worker"], request["request_id"])
        and request["start_us"] <= span.seen_us
        and span.begun_us <= request["end_us"]
    ]


def _last_reports(run: Run) -> Iterator[tuple[File, int, list[dict[str, Any]]]]:
    """Yield what files say last of what is open, and when: also of processes that were killed early."""
    ended = {end.file.path for end in run.open_at_end}
    for said in last_said(run.files):
        if said.file.path not in ended:
            yield said.file, said.at_us, said.spans
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
