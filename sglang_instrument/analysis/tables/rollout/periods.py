"""Days and weeks of a long run: its steps, its speed, the largest parts of its ledger."""

from __future__ import annotations

from typing import Final

from sglang_instrument.analysis.tables.column import Column
from sglang_instrument.analysis.tables.rollout.parts import LEAST, part_columns
from sglang_instrument.analysis.tables.table import Table

PERIODS: Final = Table(
    name="periods",
    row=f"a day or a week; a part of the ledger has a column if it has {LEAST:.0%} of a period",
    commands=("summary",),
    option="--by",
    columns=(
        Column("period", "the day, or the ISO week, in UTC; a step belongs to the one in which it began"),
        Column("begin", "its first day; a week begins on a Monday", gives_way=5, former_title="from"),
        Column("steps", "how many began", "count"),
        Column("requests", "how many ended", "count", terminal=False),
        Column("response_tokens", "tokens that the model wrote", "count", terminal=False),
        Column("p50_sec", "half of the steps took at most this long", "time", former_title="median"),
        Column("p90_sec", "90 % of the steps took at most this long", "time"),
        Column(
            "to_next_step_sec",
            "time of its steps, each until the next one begins",
            "time",
            terminal=False,
            formerly="wall_sec",
        ),
        Column(
            "tokens_per_sec",
            "response_tokens a second of to_next_step_sec",
            "number",
            title="tokens/s",
        ),
        Column("slowest_step", "the step that took longest", "id", 4, former_title="slowest"),
        Column("slowest_sec", "the time of this step", "time", 3, title="its time"),
        Column("failed", "requests that ended with an error", "count"),
        Column("unended", "steps that a worker did not close: it was killed, or the step goes on", "count"),
        Column("dropped", "records that the writers lost", "count", gives_way=2),
        Column("restarts", "launches of the trainer, without the first of the run", "count"),
        Column(
            "workers_waited_share",
            "share of all workers' time in which one waited for another",
            "share",
            gives_way=1,
            title="workers waited",
            formerly="barrier_share",
            former_title="barrier",
        ),
        *part_columns("share of to_next_step_sec, along the path that decided how long it took"),
        Column(
            "parts",
            "the share of each part of the ledger in to_next_step_sec, without those of 0",
            "object",
            terminal=False,
            frame=False,
        ),
    ),
)
