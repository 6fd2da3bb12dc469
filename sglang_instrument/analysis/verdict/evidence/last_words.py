"""Say what a process that is gone did last: what it had open, else after which request it fell silent."""

from collections.abc import Sequence

import polars as pl

from sglang_instrument.analysis.digests.digest import Digest
from sglang_instrument.analysis.reading.files import File
from sglang_instrument.analysis.reading.last_open import UNENDED, last_said, place_of, spoken


def last_words(digest: Digest, files: Sequence[File], step: int, validate: bool, worker: int) -> str:
    """Return in words what a worker did last in a step that it did not close; "" if the log does not tell."""
    for file, spans in last_said(files):
        place = file.place
        key = None if place is None else (place.role, place.step, place.validate, place.worker)
        if key == ("worker", step, validate, worker):
            inner = min(spans, key=lambda span: float(span.get("age_sec") or 0.0))
            frame = place_of(inner)
            at = "" if frame is None else f", at {frame}"
            return f"{spoken(inner)} had been running for {float(inner.get('age_sec') or 0.0):.0f} s{at}"
    ended = digest.requests.filter(
        pl.col("error").ne_missing(UNENDED), step=step, validate=validate, worker=worker
    ).sort("end_us")
    if ended.is_empty():
        return ""
    return f"silent after request {ended['request_id'][-1]}; nobody saw when it ended"
