"""Percentiles of the durations of requests, by step or by worker."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from sglang_instrument.analysis.tables.column import Column
from sglang_instrument.analysis.tables.shared import UNENDED_COUNT
from sglang_instrument.analysis.tables.table import Table

if TYPE_CHECKING:
    import polars as pl

    from sglang_instrument.analysis.run.opening import Run


def _make(run: Run) -> pl.DataFrame:
    from sglang_instrument.analysis.answers.requests import cdf_table, request_table

    training = request_table(run.everything).filter(validate=False)
    return cdf_table(training, ["step", "worker"])


def _whose(row: Mapping[str, Any]) -> str:
    return f"step {row['step']}" + (f", worker {row['worker']}" if "worker" in row else "")


DURATIONS: Final = Table(
    name="durations",
    row="a step, or with --step a step of a worker",
    commands=("requests",),
    option="--cdf",
    make=_make,
    columns=(
        Column("of", "the step, or the step and the worker", cell=_whose, json=False, frame=False),
        Column("step", "the training step", "id", terminal=False),
        Column("worker", "with --step: the rank of the worker", "id", terminal=False, optional=True),
        Column("requests", "how many", "count"),
        UNENDED_COUNT,
        Column("mean_sec", "mean duration", "time", gives_way=1),
        Column("p50_sec", "half of the requests take at most this long", "time"),
        Column("p90_sec", "90 % of the requests take at most this long", "time"),
        Column("p95_sec", "95 % of them", "time", gives_way=2),
        Column("p99_sec", "99 % of them", "time"),
        Column("p99_9_sec", "99.9 % of them", "time", gives_way=3, title="p99.9"),
        Column("max_sec", "the longest one", "time"),
    ),
)
