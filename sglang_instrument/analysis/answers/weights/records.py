"""Read the records of weight updates, and of the requests that engines served, into two tables."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from sglang_instrument.analysis.answers.engine.round_trips import ahead_us
from sglang_instrument.analysis.reading.records.fields import Fields
from sglang_instrument.analysis.run.cached_tables import cached_table
from sglang_instrument.analysis.run.newest_records import newest_records

if TYPE_CHECKING:
    from sglang_instrument.analysis.reading.folders import Place
    from sglang_instrument.analysis.reading.records.lines import Line
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
    "weights_version": "label",
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
    "is_single": pl.Boolean,
}


class WeightFields(Fields, gc=False):
    """The fields that tell of an update, or of a request."""

    part: str | None = None
    server: Any = None
    weight_version: Any = None
    first_weight_version: Any = None
    success: bool | None = None
    mode: str | None = None
    how: str | None = None
    rid: Any = None
    rids: list[Any] | None = None
    nodes: list[Any] | None = None
    request_id: Any = None
    turn: Any = None
    prompt_tokens: Any = None
    cached_tokens: Any = None
    completion_tokens: Any = None
    generated_tokens: Any = None
    finish_reason: str | None = None


def weight_spans(run: Run) -> pl.DataFrame:
    """Return one row per record of a weight update, in the order of time.

    Returns:
        process: the stem of its file, such as "scheduler_0_tp0"; role, worker; server: the address or
        replica, where the record names it; step; event; part: pause, drain, transfer, resume, flush, or
        label, where only the version's name changes;
        start_us, end_us; weight_version: as it was given, as text; is_done: whether it succeeded, null if
        not known; mode: of a pause; is_whole: whether it is the trainer's record of a whole update, which
        contains the others; is_single: whether this transfer alone is an update of its process, as from a
        disk, null in tables of earlier versions.
    """
    spans = cached_table(run, "weight_spans", lambda: _read_spans(run))
    return spans if "is_single" in spans.columns else spans.with_columns(is_single=pl.lit(None, pl.Boolean))


def _read_spans(run: Run) -> pl.DataFrame:
    rows = [row for record in records_of(run, PARTS) if (row := _row(*record)) is not None]
    return pl.DataFrame(rows, schema=_SPANS, strict=False).sort("start_us", "end_us", maintain_order=True)


def records_of(run: Run, events: Collection[str]) -> Iterator[tuple[Place, Line, WeightFields]]:
    """Yield the records of these events that have a start, of newest runs, each with the place of its file.

    Their times are on the clock of the median worker: `round_trips.ahead_us`. Torn and foreign lines are left
    out, and files that `prune` deleted.
    """
    ahead = ahead_us(run)
    for file, line, fields in newest_records(run, run.files, WeightFields, events=events):
        if file.place is not None and line.start_us is not None:
            line.start_us -= ahead.get(file.place.stem, 0)
            yield file.place, line, fields


def _row(place: Place, line: Line, fields: WeightFields) -> dict[str, Any] | None:
    part = PARTS[line.event]
    if part == "pause" and place.role == "worker":
        return None  # the end of a rollout: it aborts what over-sampling left
    return {
        "process": place.stem,
        "role": place.role,
        "worker": place.worker if line.workid is None else line.workid,
        "server": None if fields.server is None else str(fields.server),
        "step": place.step if line.step is None else line.step,
        "event": line.event,
        "part": fields.part if fields.part in PARTS.values() else part,
        "start_us": line.start_us,
        "end_us": line.end_us,
        "weight_version": as_version(fields.weight_version),
        "is_done": fields.success if line.error is None else False,
        "mode": fields.mode,
        "is_whole": part == "transfer" and (place.role == "trainer" or fields.how == "trainer"),
        "is_single": part == "transfer" and fields.how == "disk",
    }


def as_version(value: Any) -> str | None:
    """Return a version of weights as text: 7 and "7" are the same; None if there is none."""
    if isinstance(value, bool) or not isinstance(value, (int, str)):
        return None
    return str(value) or None


def as_number(version: str | None) -> int | None:
    """Return the number that a version is, None for other labels."""
    return int(version) if version is not None and version.isascii() and version.isdigit() else None
