"""Pack the spans of a step into the binary columns that the timeline in the browser reads."""

from __future__ import annotations

import sys
from array import array
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from sglang_instrument.analysis.answers.as_json import as_json
from sglang_instrument.analysis.answers.engine.round_trips import of_worker
from sglang_instrument.analysis.answers.unfinished import open_spans
from sglang_instrument.analysis.reading.all_fields import with_texts
from sglang_instrument.analysis.timing.nesting import nest
from sglang_instrument.report.event_fields import with_words
from sglang_instrument.report.palette import COLOURED, PART_OF_EVENT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sglang_instrument.analysis.run.opening import Run
    from sglang_instrument.report.html.chosen import Chosen

_OPEN: Final = 1  # flags of a span
_FAILED: Final = 2
_COUNTED: Final = 4  # work that is not inside other work: what a request is "in" at that time
_STRUCTURE: Final = ("step", "request", "turn", "loop")
_MOST_TICKS: Final = 2**32 - 1
_TYPES: Final = {"u1": "B", "u2": "H", "u4": "I"}
_ALIGNED: Final = 4  # bytes; typed arrays in a browser must begin at multiples of their item size
_ROW: Final = ["worker", "request_id"]
_NUMBER_OF_EVENT: Final = (
    pl.col("event")
    .cast(pl.String)
    .replace_strict(
        {event: COLOURED.index(part) for event, part in PART_OF_EVENT.items()},
        default=None,
        return_dtype=pl.Int64,
    )
)
_FACTS: Final = ("turns", "response_tokens", "reward", "finish_reason", "error", "duration_sec")


def pack_step(run: Run, chosen: Chosen, ahead: Mapping[str, int]) -> tuple[bytes, dict[str, str]]:
    """Return the spans of a step as `timeline_model.js` reads them, and the phase of each of its events.

    The format: four bytes with the length of a JSON header, the header, and the columns that it names. For
    each span they hold: start and duration in ticks, event, phase, depth below its row, turn (255: none),
    flags, self time, active time, the number of the words of its fields. A row is a request, or everything
    that a worker did outside of requests; the header tells where its spans begin. `ahead`, the result of
    `round_trips.ahead_us`, puts all times on one clock.
    """
    spans = _laid_out(run, chosen, ahead)
    origin = _number(spans["start_us"].min())
    extent = max(1, _number(spans["end_us"].max()) - origin)
    tick_us = -(-extent // _MOST_TICKS)  # rounded up
    rows = _rows(run, chosen, spans, origin)
    events = spans["event"].unique(maintain_order=True).to_list()
    numbers = {event: number for number, event in enumerate(events)}
    number_of = {words: number for number, words in enumerate(spans["fields"].unique(maintain_order=True))}
    columns = {
        "start": ("u4", ((spans["start_us"] - origin) // tick_us).to_list()),
        "ticks": ("u4", ((spans["end_us"] - spans["start_us"]) // tick_us).to_list()),
        "event": ("u2", [numbers[event] for event in spans["event"]]),
        "phase": ("u1", spans["phase_number"].to_list()),
        "depth": ("u1", spans["depth"].to_list()),
        "turn": ("u1", spans["turn"].clip(0, 254).fill_null(255).to_list()),
        "flags": ("u1", spans["flags"].to_list()),
        "self": ("u4", (spans["without_nested_sec"] * 1e6 / tick_us).cast(pl.Int64).to_list()),
        "active": ("u4", _active_ticks(spans, tick_us)),
        "words": ("u4", [number_of[words] for words in spans["fields"]]),
    }
    header = {
        "key": chosen.key,
        "tick_sec": tick_us / 1e6,
        "extent_sec": extent / 1e6,
        "begun_us": origin,
        "events": events,
        "fields": [*number_of],
        "moved": sorted(name for name in ahead if name.startswith("worker_")),
        **rows,
    }
    phases = spans.group_by("event").agg(pl.col("phase_number").mode().first())
    return _joined(header, columns), {event: COLOURED[number] for event, number in phases.iter_rows()}


def _active_ticks(spans: pl.DataFrame, tick_us: int) -> list[int]:
    """Return the running time of spans in ticks, plus one; 0 where it was not measured."""
    ticks = (spans["active_sec"] * 1e6 / tick_us).cast(pl.Int64) + 1
    ticks_or_zero: list[int] = ticks.fill_null(0).to_list()
    return ticks_or_zero


def _laid_out(run: Run, chosen: Chosen, ahead: Mapping[str, int]) -> pl.DataFrame:
    """Return the spans sorted by row, depth and start, on the median worker's clock."""
    records = run.read_records(chosen.step, validate=chosen.validate, texts=True)
    spans = with_words(_with_depth(nest(with_texts(records))))
    spans = spans.filter(pl.col("step").is_not_null())
    of_workers = spans.filter(pl.col("role").cast(pl.String) == "worker")
    spans = spans if of_workers.is_empty() else of_workers
    failed = pl.when(pl.col("error").is_not_null()).then(_FAILED).otherwise(0)
    spans = spans.select(
        *_ROW,
        "start_us",
        "end_us",
        "depth",
        "without_nested_sec",
        "active_sec",
        "fields",
        pl.col("event").cast(pl.String),
        pl.col("turn").cast(pl.Int64),
        phase_number=pl.coalesce(_NUMBER_OF_EVENT, pl.col("counts_for").to_physical().cast(pl.Int64)),
        flags=(failed + pl.when("counted").then(_COUNTED).otherwise(0)).cast(pl.Int64),
    )
    still = _still_open(run, chosen, spans)
    held = still.select(*_ROW, deeper=pl.lit(1)).unique()
    spans = spans.join(held, on=_ROW, how="left", nulls_equal=True)
    spans = spans.with_columns(depth=pl.col("depth") - pl.col("depth").min().over(_ROW))
    spans = spans.with_columns(depth=pl.col("depth") + pl.col("deeper").fill_null(0)).drop("deeper")
    spans = pl.concat([spans, still.select(spans.columns)])
    begun = pl.col("start_us").min().over(_ROW)
    return (
        spans.with_columns(pl.col("start_us", "end_us") - of_worker(ahead))
        .with_columns(begun=begun, depth=pl.col("depth").clip(0, 255))
        .sort("worker", pl.col("request_id").is_not_null(), "begun", "request_id", "depth", "start_us")
    )


def _with_depth(spans: pl.DataFrame) -> pl.DataFrame:
    """Add `depth`, the number of ancestors, and `counted`: work of a request outside any other work."""
    of_request = spans["request_id"].is_not_null()
    works = ~spans["counts_for"].cast(pl.String).is_in(_STRUCTURE)
    works = of_request & (works | spans["event"].cast(pl.String).is_in([*PART_OF_EVENT]))
    depths = pl.zeros(len(spans), dtype=pl.Int64, eager=True)
    inside = pl.repeat(False, len(spans), dtype=pl.Boolean, eager=True)
    up = spans["parent"]
    while up.null_count() < len(up):
        depths = depths + up.is_not_null().cast(pl.Int64)
        inside = inside | works.gather(up).fill_null(False)
        up = spans["parent"].gather(up)
    return spans.with_columns(depth=depths, counted=works & ~inside)


def _still_open(run: Run, chosen: Chosen, spans: pl.DataFrame) -> pl.DataFrame:
    """Return the spans that had not ended when the log did, cut off there."""
    rows = open_spans(run, chosen.step, chosen.validate)
    last: dict[int, int] = dict(spans.group_by("worker").agg(pl.col("end_us").max()).iter_rows())
    schema: dict[str, Any] = {**spans.schema, "age_sec": pl.Float64}
    opened = [
        {
            "worker": row.worker,
            "request_id": row.request_id,
            "start_us": row.begun_us,
            "end_us": max(row.seen_us, last.get(row.worker, 0)),
            "event": row.event,
            "turn": row.turn,
            "phase_number": COLOURED.index(PART_OF_EVENT.get(row.event, row.phase)),
            "flags": _OPEN | (0 if row.phase in _STRUCTURE else _COUNTED),
            "age_sec": row.age_sec,
        }
        for row in rows
    ]
    table = pl.DataFrame(opened, schema=schema)
    oldest_first = pl.col("age_sec").rank("ordinal", descending=True).over(_ROW) - 1
    return table.with_columns(
        depth=oldest_first.cast(pl.Int64),
        active_sec=pl.lit(None, pl.Float64),
        without_nested_sec=pl.lit(0.0),
        fields=pl.lit(""),
    )


def _rows(run: Run, chosen: Chosen, spans: pl.DataFrame, origin: int) -> dict[str, Any]:
    """Return the rows: whose they are, where their spans begin, and what is known of the requests."""
    rows = spans.group_by(_ROW, maintain_order=True).agg(
        count=pl.len(),
        start_us=pl.col("start_us").min(),
        end_us=pl.col("end_us").max(),
        is_open=(pl.col("flags") & _OPEN > 0).any(),
    )
    of_step = (pl.col("step") == chosen.step) & (pl.col("validate") == chosen.validate)
    facts = run.digest.of_workers().requests.filter(of_step).unique(_ROW, keep="last").select(*_ROW, *_FACTS)
    rows = rows.join(facts, on=_ROW, how="left", maintain_order="left", nulls_equal=True)
    return {
        "worker": rows["worker"].to_list(),
        "request": rows["request_id"].to_list(),
        "count": rows["count"].to_list(),
        "from_sec": ((rows["start_us"] - origin) / 1e6).to_list(),
        "to_sec": ((rows["end_us"] - origin) / 1e6).to_list(),
        "open": rows["is_open"].to_list(),
        **{fact: rows[fact].to_list() for fact in _FACTS},
    }


def _joined(header: dict[str, Any], columns: dict[str, tuple[str, list[int]]]) -> bytes:
    parts: list[bytes] = []
    places: dict[str, Any] = {}
    position = 0
    for name, (kind, values) in columns.items():
        column = array(_TYPES[kind], values)
        if sys.byteorder == "big":
            column.byteswap()
        places[name] = {"type": kind, "at": position, "length": len(values)}
        raw = column.tobytes()
        raw += b"\0" * (-len(raw) % _ALIGNED)
        parts.append(raw)
        position += len(raw)
    encoded = as_json({**header, "columns": places})
    encoded += b" " * (-len(encoded) % _ALIGNED)
    return len(encoded).to_bytes(4, "little") + encoded + b"".join(parts)


def _number(value: Any) -> int:
    return 0 if value is None else int(value)
