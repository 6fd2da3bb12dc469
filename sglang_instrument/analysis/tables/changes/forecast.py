"""When a training reaches its next steps, and what caps on responses would change of that."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any, Final

from sglang_instrument.analysis.tables.column import Column
from sglang_instrument.analysis.tables.table import Table


def _moment(row: Mapping[str, Any]) -> str:
    return f"{datetime.fromtimestamp(row['at_us'] / 1e6, timezone.utc):%Y-%m-%d %H:%M}"


def _hours(name: str) -> Any:
    return lambda row: f"{row[name] / 3600:.3g}"


MILESTONES: Final = Table(
    name="milestones",
    row="a tenth of the steps to come",
    commands=("forecast",),
    columns=(
        Column("step", "the step that ends then", "id"),
        Column(
            "at_us",
            "when it ends, the median",
            "moment",
            title="ends at (UTC)",
            cell=_moment,
            shown_as="words",
        ),
        Column(
            "in_sec",
            "after how many seconds, from the last complete step on",
            "time",
            title="in h",
            cell=_hours("in_sec"),
            shown_as="words",
        ),
        Column("low_sec", "begin of the 80 % interval of that", "time", terminal=False),
        Column("high_sec", "end of it", "time", terminal=False),
        Column(
            "interval",
            "the 80 % interval, in hours",
            cell=lambda row: f"{row['low_sec'] / 3600:.3g} .. {row['high_sec'] / 3600:.3g}",
            json=False,
            frame=False,
            title="80 % interval h",
        ),
        Column("step_sec", "what a step takes then, the median", "time"),
    ),
)
CAPS_FROM_NOW: Final = Table(
    name="caps_from_now",
    row="a cap on the tokens of a response, from now on",
    commands=("forecast",),
    columns=(
        Column("cap", "the cap, in tokens", "count"),
        Column("cut_share", "the share of the responses that it would have cut so far", "share", title="cut"),
        Column(
            "left_sec",
            "seconds to the end with it",
            "time",
            title="ends in h",
            cell=_hours("left_sec"),
            shown_as="words",
        ),
        Column(
            "saves_sec",
            "seconds that it saves to the end",
            "time",
            title="saves h",
            cell=_hours("saves_sec"),
            shown_as="words",
        ),
    ),
)
