"""Say what a worker that is gone did last: what a follower saw, what it had open, else its last request."""

from typing import Any

import polars as pl

from sglang_instrument.analysis.answers.unfinished import sightings
from sglang_instrument.analysis.reading.last_open import UNENDED, last_said, place_of, spoken
from sglang_instrument.analysis.verdict.evidence.run_evidence import Evidence


def did_last(evidence: Evidence, step: int, validate: bool, worker: int) -> str:
    """Return in words what a worker did last in a step that it did not close; "" if nothing tells."""
    known = [] if evidence.run is None else sightings(evidence.run)
    seen = [sighting for sighting in known if _is_of(sighting, step, worker)]
    if seen:
        silent_sec = (seen[-1]["seen_us"] - seen[-1]["since_us"]) / 1e6
        return f"a follower saw it silent for {silent_sec:.0f} s: {seen[-1]['sentence'].partition(': ')[2]}"
    for file, spans, _ in last_said(evidence.files):
        place = file.place
        key = None if place is None else (place.role, place.step, place.validate, place.worker)
        if key == ("worker", step, validate, worker):
            inner = min(spans, key=lambda span: float(span.get("age_sec") or 0.0))
            frame = place_of(inner)
            at_frame = "" if frame is None else f", at {frame}"
            return (
                f"{spoken(inner)} had been running for {float(inner.get('age_sec') or 0.0):.0f} s{at_frame}"
            )
    ended = evidence.digest.requests.filter(
        pl.col("error").ne_missing(UNENDED), step=step, validate=validate, worker=worker
    ).sort("end_us")
    if ended.is_empty():
        return ""
    return f"silent after request {ended['request_id'][-1]}; nobody saw when it ended"


def _is_of(sighting: dict[str, Any], step: int, worker: int) -> bool:
    is_silence = sighting["kind"] == "hang"  # that it died is known
    return is_silence and (sighting["role"], sighting["step"], sighting["worker"]) == ("worker", step, worker)
