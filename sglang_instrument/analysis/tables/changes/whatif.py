"""Steps as they would be under other rules."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from sglang_instrument.analysis.tables.column import Column
from sglang_instrument.analysis.tables.shared import VALIDATE
from sglang_instrument.analysis.tables.table import Table


def _saved(row: Mapping[str, Any]) -> float | None:
    return 1 - row["predicted_sec"] / row["recorded_sec"] if row["recorded_sec"] else None


def _of_all(row: Mapping[str, Any]) -> str:
    return f"{row['ended_early']:,} of {row['requests']:,}"


PREDICTED_STEPS: Final = Table(
    name="predicted_steps",
    row="a step under the rules: a model, not a measurement",
    commands=("whatif",),
    columns=(
        Column("step", "its number", "id"),
        VALIDATE,
        Column("recorded_sec", "the longest worker of the step, without its waiting at barriers", "time"),
        Column("predicted_sec", "the same under the rules", "time"),
        Column("saved", "share of the recorded time", "share", cell=_saved, json=False, frame=False),
        Column("requests", "how many", "count", terminal=False),
        Column(
            "ended_early",
            "requests that the rules would end early; a terminal adds how many there are",
            "count",
            cell=_of_all,
            formerly="cut",
            former_title="cut",
        ),
        Column(
            "ended_early_reward",
            "mean recorded reward of the requests that would end early",
            "number",
            gives_way=2,
            title="their reward",
            formerly="reward_cut",
            former_title="reward of cut",
        ),
        Column(
            "mean_reward",
            "mean recorded reward of all requests",
            "number",
            gives_way=1,
            formerly="reward_all",
            former_title="reward of all",
        ),
    ),
)
