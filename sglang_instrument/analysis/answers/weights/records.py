"""Read the records of weight updates, and of the requests that engines served, into two tables."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any, Final

import msgspec
import polars as pl
from msgspec import Struct

from sglang_instrument.analysis.run.cached_tables import cached_table
from sglang_instrument.analysis.run.newest_records import newest_records

if TYPE_CHECKING:
    from sglang_instrument.analysis.reading.folders import Place
    from sglang_instrument.analysis.run.opening import Run

#: The part of an update that an event is, where its record does not say it.
PARTS: Final = {
    "generation_pause": "pause",
    "generation_drain": "drain",
    "weights_update": "transfer",
    "weights_pull": "transfer",
    "weights_process": "transfer",
    "generation_continue": "resume",
    "engine_cache_flush": "flush",
}
_SPANS: Final[dict[str, Any]] = {
    "process": pl.String,
    "role": pl.String,
    "worker": pl.Int64,
    "server": pl.String,
    "step": pl.Int64,
    "event": pl.String,
    "part": pl.String,
    "start_us": pl.Int64,
    "end_us": pl.Int64,
    "weight_version": pl.String,
    "is_done": pl.Boolean,
    "mode": pl.String,
    "is_whole": pl.Boolean,
}


class Fields(Struct, gc=False):
    """The fields that tell of an update, or of a request."""

    run_id: Any = None
    part: Any = None
    server: Any = None
    weight_version: Any = None
    first_weight_version: Any = None
    success: Any = None
    mode: Any = None
    how: Any = None
    rid: Any = None
    rids: Any = None
    nodes: Any = None
    request_id: Any = None
    turn: Any = None
    prompt_tokens: Any = None
    cached_tokens: Any = None
    completion_tokens: Any = None
    generated_tokens: Any = None
    finish_reason: Any = None


class Record(Struct, gc=False):
    """The keys of a record that these tables need."""

    event: str
    start_us: int | None = None
    duration_sec: float | None = None
    workid: Any = None
    step: Any = None
    extra: Fields | None = None
    error: Any = None

    @property
    def end_us(self) -> int:
        """When it ended."""
        return (self.start_us or 0) + int((self.duration_sec or 0.0) * 1e6)


_LINES: Final = msgspec.json.Decoder(Record)


def weight_spans(run: Run) -> pl.DataFrame:
    """Return one row per record of a weight update, in the order of time.

    Returns:
        process: the stem of its file, such as "scheduler_0_tp0"; role, worker; server: the address or
        replica, where the record names it; step; event; part: pause, drain, transfer, resume or flush;
        start_us, end_us; weight_version: as it was given, as text; is_done: whether it succeeded, null if
        not known; mode: of a pause; is_whole: whether it is the trainer's record of a whole update, which
        contains the others.
    """
    if run.is_dataset:
        return pl.DataFrame(schema=_SPANS)
    return cached_table(run, "weight_spans", lambda: _read_spans(run))


def _read_spans(run: Run) -> pl.DataFrame:
    read = records_of(run, PARTS)
    rows = [row for place, record in read if (row := _row(place, record)) is not None]
    return pl.DataFrame(rows, schema=_SPANS, strict=False).sort("start_us", "end_us", maintain_order=True)


def records_of(run: Run, events: Collection[str]) -> Iterator[tuple[Place, Record]]:
    """Yield the records of these events that have a start, of newest runs, each with the place of its file.

    Torn and foreign lines are left out, and files that `prune` deleted.
    """
    files = [file for file in run.files if file.place is not None and file.may_hold(events)]
    for file, record in newest_records(run, files, tuple(events), _LINES):
        if file.place is not None and record.event in events and record.start_us is not None:
            yield file.place, record


def _row(place: Place, record: Record) -> dict[str, Any] | None:
    part = PARTS.get(record.event)
    if part is None or record.start_us is None:
        return None
    fields = record.extra or Fields()
    if part == "pause" and place.role == "worker":
        return None  # the end of a rollout: it aborts what over-sampling left
    is_done = fields.success if isinstance(fields.success, bool) else None
    return {
        "process": place.stem,
        "role": place.role,
        "worker": record.workid if type(record.workid) is int else place.worker,
        "server": None if fields.server is None else str(fields.server),
        "step": record.step if type(record.step) is int else place.step,
        "event": record.event,
        "part": fields.part if fields.part in PARTS.values() else part,
        "start_us": record.start_us,
        "end_us": record.end_us,
        "weight_version": as_version(fields.weight_version),
        "is_done": False if record.error is not None else is_done,
        "mode": fields.mode if isinstance(fields.mode, str) else None,
        "is_whole": part == "transfer" and (place.role == "trainer" or fields.how == "trainer"),
    }


def as_version(value: Any) -> str | None:
    """Return a version of weights as text: 7 and "7" are the same; None if there is none."""
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        return None
    return str(value) or None


def as_number(version: str | None) -> int | None:
    """Return the number that a version is, None for other labels."""
    return int(version) if version is not None and version.isascii() and version.isdigit() else None
