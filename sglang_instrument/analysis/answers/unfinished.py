"""Find what a run left unfinished: spans that never ended, and workers that wrote no record."""

from typing import Any

from sglang_instrument.analysis.reading.files import last_open_reports
from sglang_instrument.analysis.run.opening import Run


def unended_spans(run: Run) -> list[dict[str, Any]]:
    """Return the spans that the last report of a file names, where its step did not end.

    Returns:
        file; event; request_id and turn, None where none was bound; age_sec when it was reported; stack: the
        frames in which it stood, the innermost last.
    """
    keys = ("event", "request_id", "turn", "age_sec", "stack")
    return [
        {"file": file.path, **{key: span.get(key) for key in keys}}
        for file, control in last_open_reports(run.files)
        for span in control.extra.spans or []
        if isinstance(span, dict)
    ]


def workers_without_records(run: Run) -> list[str]:
    """Return the workers that are in `processes/` and wrote no record, such as "worker_3"."""
    written = {place.stem for file in run.files if (place := file.place) is not None and any(file.records)}
    described = sorted(path.stem for path in (run.home / "processes").glob("worker_*.json"))
    return [name for name in described if name not in written]
