"""Find what a run left unfinished: spans that never ended, and workers that wrote no record."""

from typing import Any, Final

from sglang_instrument.analysis.reading.last_open import last_open_reports
from sglang_instrument.analysis.reading.sightings import sightings_of
from sglang_instrument.analysis.run.losses import used_runs
from sglang_instrument.analysis.run.opening import Run

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
