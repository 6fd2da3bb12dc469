"""Workers, step by step: how long each took, its requests, its waiting at barriers."""

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
from sglang_instrument.analysis.tables.rollout.parts import part_columns
from sglang_instrument.analysis.tables.shared import UNENDED, VALIDATE
from sglang_instrument.analysis.tables.table import Table

if TYPE_CHECKING:
    import polars as pl

    from sglang_instrument.analysis.run.opening import Run


def _make(run: Run) -> pl.DataFrame:
    import polars as pl

    from sglang_instrument.analysis.answers.steps import STEP_OF_WORKER, worker_table
    from sglang_instrument.analysis.answers.workers import barrier_table

    certain = pl.col("doubt").is_null()
    caused = pl.col("caused_wait_sec").filter(certain).sum()
    waits = (
        barrier_table(run.digest)
        .group_by(STEP_OF_WORKER)
        .agg(pl.col("wait_sec").sum(), caused_wait_sec=pl.when(certain.any()).then(caused))
    )
    return worker_table(run.digest).join(waits, on=STEP_OF_WORKER, how="left", maintain_order="left")


WORKERS: Final = Table(
    name="workers",
    row="a step of a worker; barrier and all parts add up to 100",
    commands=("summary",),
    option="--step N",
    make=_make,
    is_stored=True,
    columns=(
        Column("step", "the training step", "id", terminal=False),
        VALIDATE,
        Column("worker", "its rank", "id"),
        Column("duration_sec", "from its begin to its end", "time", former_title="time"),
        UNENDED,
        Column("busy_sec", "the same without the time at barriers", "time"),
        INTERVAL,
        UNACCOUNTED,
        *REQUESTS,
        Column("barrier", "share of its time: waiting for another worker", "share", json=False, frame=False),
        *part_columns("share of its time, until the next step begins"),
        Column("wait_sec", "time at barriers; null where it met none", "time", terminal=False, json=False),
        Column(
            "caused_wait_sec",
            "waiting of others that it caused: each instant is split equally among the workers that are "
            "missing; null without evidence",
            "time",
            terminal=False,
            json=False,
            formerly="blame_sec",
        ),
        *PHASE_SHARES,
        PHASES_OBJECT,
        Column("start_us", "its start", "moment", terminal=False),
    ),
)
