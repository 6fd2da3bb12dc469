"""Spans and instant events, one row each, and the fields that they have."""

from __future__ import annotations

from typing import Final

from sglang_instrument.analysis.tables.column import Column
from sglang_instrument.analysis.tables.table import Table

SPANS: Final = Table(
    name="spans",
    row="a span or an instant event",
    is_stored=True,
    columns=(
        Column("run_id", "launch that wrote it; in files a partition; null without a header"),
        Column("step", "training step; in files a partition; null for the engine's processes", "id"),
        Column("validate", "whether it is validation", "flag"),
        Column("role", "worker, trainer, server, scheduler ...: from the log file's name"),
        Column("worker", "rank of the process", "id"),
        Column("event", "name of the event"),
        Column("phase", "phase of the event"),
        Column("request_id", "as logged; null outside of requests"),
        Column("turn", "null outside of turns", "ordinal"),
        Column("start_us", "start, on the clock of its host", "moment"),
        Column("end_us", "end, on the clock of its host", "moment"),
        Column("duration_sec", "wall time; null for instant events", "time"),
        Column("timestamp", "end, as a timestamp", "timestamp"),
        Column(
            "without_nested_sec",
            "duration less the time that spans inside it cover; null for instant events",
            "time",
            formerly="self_sec",
        ),
        Column(
            "steps_sec",
            "its part of its worker's step; they add up to the step; null for instant events",
            "time",
            formerly="wall_sec",
        ),
        Column("active_sec", "time in which it held the event loop; null if not measured", "time"),
        Column("device_sec", "GPU time; null if not measured", "time"),
        Column("error", "type of the exception; null if none"),
        Column("tool", "name of the tool"),
        Column("turns", "turns of a request, in the request's own span", "count"),
        Column("finish_reason", "why the reply ended"),
        Column("response_tokens", "tokens that the model wrote", "count"),
        Column("reward", "as logged", "number"),
        Column("task", "number of the asyncio task or thread, within its process", "id"),
        Column("counts_for", "phase; of phase other, that of the work around it; null for instant events"),
        Column("span", "unique within its file and run; null for instant events", "id"),
        Column("parent", "number of the span that it ran inside; null for the outermost", "id"),
        Column("concurrent", "whether the parent is in another task", "flag"),
        Column("file", "log file that it was read from"),
        Column("extra", "all fields, as JSON, as they stand in the log; null if it has none"),
        Column("other_keys", "keys of the line without a column, as JSON; null if it has none"),
    ),
)

FIELDS: Final = Table(
    name="fields",
    row="a field of an event, for each type of its values; `sql` makes it of `spans`",
    columns=(
        Column("event", "name of the event"),
        Column("field", "name of the field: a key of `extra`, or one of `other_keys`"),
        Column("type", "number, string, boolean, array, object or null; a row for each"),
        Column("count", "how many spans and instant events have it", "count"),
        Column("example", "the largest of its numbers; null if it has none", "number"),
    ),
)
