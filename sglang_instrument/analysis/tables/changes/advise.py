"""Settings to change, and what that saves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sglang_instrument.analysis.tables.column import Column
from sglang_instrument.analysis.tables.table import Table

NOT_KNOWN: Final = "not recorded"


def _value(name: str) -> Any:
    def cell(row: Mapping[str, Any]) -> str:
        value = row[name]
        if value is None:
            return NOT_KNOWN if name == "now" else "-"
        return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)

    return cell


def _interval(row: Mapping[str, Any]) -> str | None:
    return None if row["low"] is None else f"{row['low']:.3g} .. {row['high']:.3g}"


LEVERS: Final = Table(
    name="levers",
    row="a setting to change: first those whose savings are simulated, the largest first",
    commands=("advise",),
    columns=(
        Column("setting", "its name in the trainer or the engine"),
        Column("lever", "what kind of change it is", terminal=False),
        Column(
            "kind",
            "simulated: its saving is replayed; named: only what the present setting cost is known",
            terminal=False,
        ),
        Column("now", "its value; null if it is not recorded", "value", cell=_value("now"), frame=False),
        Column("proposed", "the value to try", "value", cell=_value("proposed"), frame=False),
        Column("saves_sec", "seconds that a step saves on average; null for named ones", "time"),
        Column("low", "begin of the 80 % interval, in seconds", "number", terminal=False),
        Column("high", "end of it", "number", terminal=False),
        Column(
            "interval",
            "the 80 % interval, in seconds",
            cell=_interval,
            json=False,
            frame=False,
            title="80 % interval",
        ),
        Column("costs_sec", "of named ones, what the present setting cost a step", "time", gives_way=2),
        Column("share", "of a step: what it saves, or cost", "share"),
        Column("costs", "what the change costs", terminal=False),
        Column("rests_on", "what the proposal rests on", terminal=False),
        Column("command", "shows the evidence", terminal=False),
    ),
)
