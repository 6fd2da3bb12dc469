"""Steps: how long each took, its requests, and what its time was spent on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sglang_instrument.analysis.tables.column import Column
from sglang_instrument.analysis.tables.rollout.of_step import (
    INTERVAL,
    PHASE_SHARES,
    PHASES_OBJECT,
    REQUESTS,
    UNACCOUNTED,
)
from sglang_instrument.analysis.tables.rollout.parts import LEAST, part_columns
from sglang_instrument.analysis.tables.shared import UNENDED, VALIDATE
from sglang_instrument.analysis.tables.table import Table

if TYPE_CHECKING:
    import polars as pl

    from sglang_instrument.analysis.run.opening import Run

_WORK: Final = {
    "engine_sec": "calls of the engine",
    "tool_sec": "tools",
    "interaction_sec": "interactions",
    "reward_sec": "rewards",
    "between_steps_sec": "from its end to the begin of the next step",
    "other_sec": "everything else",
}


def _make(run: Run) -> pl.DataFrame:
    from sglang_instrument.analysis.answers.engine.call_times import paths_of
    from sglang_instrument.analysis.answers.steps import STEP, step_table
    from sglang_instrument.analysis.answers.summary import summary_table

    spent = summary_table(run.digest, paths_of(run))
    spent = spent.select(*STEP, "to_next_step_sec", *_WORK, "workers_waited_share")
    return step_table(run.digest).join(spent, on=STEP, how="left", maintain_order="left")


STEPS: Final = Table(
    name="steps",
    row=f"a step; a part of the ledger has a column if it has {LEAST:.0%} of a step",
    commands=("summary",),
    make=_make,
    is_stored=True,
    columns=(
        Column("step", "its number", "id"),
        VALIDATE,
        Column("workers", "number of workers", "count", terminal=False),
        Column("slowest_worker", "the worker with the largest busy_sec", "id", terminal=False),
        Column("duration_sec", "of the longest of its workers", "time", former_title="time"),
        UNENDED,
        Column("busy_sec", "the same without the time at barriers", "time", terminal=False),
        INTERVAL,
        UNACCOUNTED,
        Column(
            "to_next_step_sec",
            "from its begin to the begin of the next step; of the last step of a launch, to its end",
            "time",
            json=False,
            formerly="wall_sec",
            former_title="wall",
        ),
        *REQUESTS,
        Column(
            "workers_waited_share",
            "share of all workers' time, until the next step begins, in which one waited for another",
            "share",
            title="workers waited",
            json=False,
            formerly="barrier_share",
            former_title="barrier",
        ),
        *part_columns("share of to_next_step_sec, along the path that decided how long it took"),
        *(
            Column(
                name,
                f"part of to_next_step_sec, along the path that decided it: {meaning}",
                "time",
                terminal=False,
                json=False,
                formerly="rest_sec" if name == "other_sec" else "",
            )
            for name, meaning in _WORK.items()
        ),
        *PHASE_SHARES,
        PHASES_OBJECT,
        Column("start_us", "earliest start of its workers", "moment", terminal=False),
    ),
)
