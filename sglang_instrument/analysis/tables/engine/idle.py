"""What the time of the servers was spent on, and why they were idle."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sglang_instrument.analysis.tables.column import Column
from sglang_instrument.analysis.tables.table import Table

if TYPE_CHECKING:
    from collections.abc import Mapping

    import polars as pl

    from sglang_instrument.analysis.run.opening import Run


def _make(run: Run) -> pl.DataFrame:
    from sglang_instrument.analysis.answers.routing.idle import idle_table

    return idle_table(run)


def _server(row: Mapping[str, Any]) -> str:
    return "all" if row["server"] is None else str(row["server"])


IDLE: Final = Table(
    name="idle",
    row="a part of the time of one or all servers in the training steps; their shares add up to 100 %",
    commands=("servers",),
    option="--idle",
    make=_make,
    columns=(
        Column("server", "the server; null: all of them together", cell=_server),
        Column(
            "part",
            "serving calls, where schedulers log no batches; else running batches, taking results (the wait "
            "for the GPU, then Python), between batches (calls in flight, but no batch). Idle: tail (the "
            "last fifth of a step's requests runs on other servers), requests on other servers, tools (most "
            "requests in flight have no call), rewards, between calls (the client), work around requests, "
            "trainer, weight sync, validation, not recorded",
        ),
        Column("is_idle", "whether no call was in flight on the server", "flag"),
        Column("sec", "seconds, summed over the steps", "time"),
        Column("share", "of the time of the steps", "share"),
    ),
)
