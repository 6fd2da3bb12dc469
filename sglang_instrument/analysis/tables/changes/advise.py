"""Settings to change, and what that saves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sglang_instrument.analysis.tables.column import Column
from sglang_instrument.analysis.tables.table import Table

NOT_KNOWN: Final = "not recorded"


def shown_value(row: Mapping[str, Any], name: str) -> str:
    """Return the value of a setting in words, of `now` or `proposed`."""
    value = row[name]
    if value is None:
        return NOT_KNOWN if name == "now" else "-"
    return f"{value:,}" if isinstance(value, int) and not isinstance(value, bool) else str(value)


def _value(name: str) -> Any:
    return lambda row: shown_value(row, name)


def _interval(row: Mapping[str, Any]) -> str | None:
    return None if row["low"] is None else f"{row['low']:.3g} .. {row['high']:.3g}"


VERIFIED: Final = Table(
    name="verified",
    row="a promise of `advise`, and what came of it",
    commands=("advise",),
    option="--verify",
    columns=(
        Column("setting", "its name in the trainer or the engine"),
        Column("lever", "what kind of change it is", terminal=False),
        Column("made_us", "when it was promised", "moment", terminal=False),
        Column("now", "its value before", "value", cell=_value("now"), frame=False),
        Column("proposed", "the value that was proposed", "value", cell=_value("proposed"), frame=False),
        Column("was_changed", "whether it differs between both runs; null if that was not recorded", "flag"),
        Column("promised_sec", "seconds that a step was to save", "time"),
        Column("promised_low", "begin of the promised 80 % interval, in seconds", "number", terminal=False),
        Column("promised_high", "end of it", "number", terminal=False),
        Column(
            "promised",
            "the promised interval, in seconds",
            cell=lambda row: f"{row['promised_low']:.3g} .. {row['promised_high']:.3g}",
            json=False,
            frame=False,
        ),
        Column("before_sec", "mean seconds of a step before", "time", gives_way=3),
        Column("after_sec", "mean seconds of a step after", "time", gives_way=2),
        Column("work", "tokens of a step after, over those before", "number", gives_way=1),
        Column("saved_sec", "seconds that a step saved, at equal work unless the lever changes it", "time"),
        Column("saved_low", "begin of its 80 % interval, in seconds", "number", terminal=False),
        Column("saved_high", "end of it", "number", terminal=False),
        Column(
            "held",
            "whether the promised interval and that of the saving overlap; null where steps scatter too much "
            "to tell it from nothing",
            "flag",
        ),
    ),
)
LIMITS: Final = Table(
    name="limits",
    row="a limit that calls meet: a time-out, a cap, a number of retries, or of calls at once",
    commands=("advise",),
    columns=(
        Column("of", "what meets it", terminal=False),
        Column("kind", "time, tokens, turns, retries or concurrency", terminal=False),
        Column(
            "value", "the limit: seconds, tokens, turns, retries, or calls at once", "number", terminal=False
        ),
        Column("width", "by how much values differ from it", "number", terminal=False),
        Column(
            "at_limit",
            "how many end there; of a scheduler, seconds in which as many run",
            "count",
            terminal=False,
        ),
        Column("of_all", "of how many", "count", terminal=False),
        Column("above", "how many go beyond", "count", terminal=False),
        Column("steps", "in how many steps; null of a scheduler", "count", terminal=False),
        Column("request_id", "a request that meets it; null of a scheduler", terminal=False),
        Column("sentence", "the limit in words"),
    ),
)
LEVERS: Final = Table(
    name="levers",
    row="a setting to change, in the order of what it saves for sure; named ones by what they cost",
    commands=("advise",),
    columns=(
        Column("setting", "its name in the trainer or the engine"),
        Column("lever", "what kind of change it is", terminal=False),
        Column(
            "kind",
            "simulated: its saving is replayed; named: only what the present setting cost is known; "
            "measured: on a twin",
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
