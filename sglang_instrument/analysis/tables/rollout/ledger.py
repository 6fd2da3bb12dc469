"""The ledger: what the wall time of a step was spent on, part by part."""

from __future__ import annotations

from typing import Final

from sglang_instrument.analysis.tables.column import Column
from sglang_instrument.analysis.tables.shared import VALIDATE
from sglang_instrument.analysis.tables.table import Table

LEDGER: Final = Table(
    name="ledger",
    row="a part of a step's time; only --json has it, of each worker, too, with --step",
    commands=("summary",),
    columns=(
        Column("step", "the training step", "id", terminal=False),
        VALIDATE,
        Column("worker", "the worker that decided; null where none did", "id", terminal=False),
        Column("part", "a part of the ledger: engine, tool, barrier ...", terminal=False),
        Column("event", "the event in it; null where it has none", terminal=False),
        Column("waited_for", "the worker that a barrier waited for; null elsewhere", "id", terminal=False),
        Column(
            "sec",
            "for how long this part decided how long the step takes; they add up to its time",
            "time",
            terminal=False,
        ),
    ),
)
STEP_PARTS: Final = Table(
    name="step_parts",
    row="a part of the ledger of one step, and below it its events, if there are several; only a terminal "
    "has it",
    commands=("summary",),
    option="--step N",
    columns=(
        Column("part", "a part of the ledger; below it its events"),
        Column(
            "decided_sec",
            "seconds of the step in which this part decided how long it takes",
            "time",
            former_title="time",
        ),
        Column("share", "of the step's wall time", "share"),
        Column("workers", "the workers that decided", former_title="whose"),
        Column("worker_0_sec", "the same of each worker: those that decided first", "time"),
    ),
)
