"""Which workers the others waited for, over the run and at each barrier."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sglang_instrument.analysis.tables.column import Column
from sglang_instrument.analysis.tables.shared import VALIDATE
from sglang_instrument.analysis.tables.table import Table

if TYPE_CHECKING:
    import polars as pl

    from sglang_instrument.analysis.run.opening import Run


def _waits(run: Run) -> pl.DataFrame:
    import polars as pl

    from sglang_instrument.analysis.answers.workers import blame_table

    return blame_table(run.digest.filter(~pl.col("validate")))


def _barriers(run: Run) -> pl.DataFrame:
    from sglang_instrument.analysis.answers.workers import barrier_table

    return barrier_table(run.digest)


_TIMES: Final = (
    Column("wait_sec", "its waiting at barriers", "time"),
    Column(
        "caused_wait_sec",
        "waiting that it caused: each instant is split equally among the workers that are missing",
        "time",
        formerly="blame_sec",
        former_title="blame",
    ),
    Column(
        "possible_saving_sec",
        "time saved if this worker alone were as fast as the next slowest",
        "time",
        gives_way=2,
        formerly="gain_alone_sec",
        former_title="gain",
    ),
)
WAITS: Final = Table(
    name="waits",
    row="a worker, the one that caused most waiting first",
    commands=("workers",),
    make=_waits,
    columns=(
        Column("worker", "its rank", "id"),
        Column("barriers", "how many it left together with others", "count"),
        Column("times_last", "how often it came last", "count", formerly="last"),
        *_TIMES,
        Column(
            "clock",
            "by how many seconds its clock is ahead of the median worker's, +- the residual; clocks of the "
            "engine's processes follow below",
            gives_way=1,
            title="clock s",
            json=False,
            frame=False,
        ),
    ),
)
BARRIERS: Final = Table(
    name="barriers",
    row="a worker at a barrier, in the order of arrival",
    commands=("workers",),
    option="--step N",
    make=_barriers,
    columns=(
        Column("step", "the training step", "id", terminal=False),
        VALIDATE,
        Column("worker", "its rank", "id"),
        Column("barrier", "the first, second ... of the step", "ordinal"),
        Column("arrival_sec", "after the first worker's", "time"),
        *_TIMES,
        Column("doubt", "why this barrier is not enough evidence; null if it is", terminal=False),
    ),
)
