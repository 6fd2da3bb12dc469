"""A twin beside its record, and settings that were measured on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sglang_instrument.analysis.tables.column import Column
from sglang_instrument.analysis.tables.table import Table


def _three_digits(name: str) -> Any:
    def cell(row: Mapping[str, Any]) -> str:
        value = row[name]
        return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"

    return cell


def _interval(row: Mapping[str, Any]) -> str | None:
    if row["low"] is None or row["high"] is None:
        return None
    return f"{row['low']:.3g} .. {row['high']:.3g}"


TWIN_PARTS: Final = Table(
    name="twin_parts",
    row="a part of the twin under the recorded setting, beside the record",
    commands=("twin",),
    columns=(
        Column("part", "what is compared"),
        Column("unit", "of both means", terminal=False),
        Column("record", "mean over the steps of the record", "number", cell=_three_digits("record")),
        Column("twin", "mean over the same steps of the twin", "number", cell=_three_digits("twin")),
        Column("ratio", "geometric mean over the steps of twin over record", "number", title="twin / record"),
        Column("low", "least of the steps", "number", terminal=False),
        Column("high", "most of the steps", "number", terminal=False),
        Column("by_step", "the least and the most", cell=_interval, json=False, frame=False, gives_way=1),
        Column(
            "is_near",
            "whether they are alike: times within 10 %, hits within 5 % of the prompts' tokens, the queue "
            "within 5 % of a call, counts exactly",
            "flag",
            title="alike",
        ),
    ),
)
TWIN_SETTINGS: Final = Table(
    name="twin_settings",
    row="a setting that was measured on the twin; the first is the command as it is",
    commands=("twin", "advise"),
    option="--set",
    columns=(
        Column("setting", "NAME=VALUE"),
        Column("rollout_sec", "mean seconds of a step's rollout", "time"),
        Column(
            "step_sec",
            "mean seconds of a whole step: that of the record, with the rollout so much faster or slower; "
            "null where training and rollout overlap",
            "time",
        ),
        Column("ratio", "its rollout over that of the command as it is, step by step", "number"),
        Column(
            "low", "begin of the 95 % interval of the ratio; null with one pair", "number", terminal=False
        ),
        Column("high", "end of it", "number", terminal=False),
        Column("interval", "the 95 % interval of the ratio", cell=_interval, json=False, frame=False),
        Column("pairs", "how many steps were compared", "count", gives_way=3),
        Column("p99_sec", "mean of the 99th percentile of requests", "time", gives_way=2),
        Column("queue_sec", "mean seconds of a call in the scheduler's queue", "fine time"),
        Column("cached_share", "share of the prompts' tokens that was in a cache", "share"),
        Column("retractions", "how many in a step, as a mean", "number", gives_way=1),
        Column("is_best", "whether it is faster than all others by more than noise", "flag", title="best"),
    ),
)
