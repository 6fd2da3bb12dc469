"""Events of one request, as a waterfall."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sglang_instrument.analysis.tables.column import Column
from sglang_instrument.analysis.tables.shared import OF_ATTEMPT, UNENDED
from sglang_instrument.analysis.tables.table import Table


def _indented(row: Mapping[str, Any]) -> str:
    return f"{'  ' * row['depth']}{row['event']}"


REQUEST_EVENTS: Final = Table(
    name="request_events",
    row="an event of one request, in the order of time",
    commands=("requests",),
    option="--request",
    columns=(
        Column("event", "its name, indented below the event that contains it", cell=_indented),
        Column("turn", "the turn that it belongs to", "ordinal", gives_way=3),
        Column("start_sec", "its begin, after the begin of the request", "fine time"),
        Column("duration_sec", "its duration; null for instant events", "fine time", former_title="time"),
        UNENDED,
        Column(
            "without_nested_sec",
            "the same without the events below it",
            "fine time",
            gives_way=1,
            formerly="self_sec",
            former_title="self",
        ),
        Column(
            "active_sec",
            "how long its coroutine held the event loop; else it was suspended",
            "fine time",
            gives_way=2,
            former_title="running",
        ),
        OF_ATTEMPT,
        Column("depth", "how many events contain it", "count", terminal=False),
        Column("when", "its place in the time of the request", json=False, frame=False),
        Column("fields", "its fields in the log, without those that have a column", "object", terminal=False),
    ),
)
