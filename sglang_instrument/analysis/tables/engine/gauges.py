"""How full the schedulers were, second by second."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sglang_instrument.analysis.tables.column import Column
from sglang_instrument.analysis.tables.table import Table

if TYPE_CHECKING:
    import polars as pl

    from sglang_instrument.analysis.run.opening import Run


def _make(run: Run) -> pl.DataFrame:
    from sglang_instrument.analysis.answers.routing.gauges import gauge_table

    return gauge_table(run)


GAUGES: Final = Table(
    name="gauges",
    row="a second in which a scheduler ran batches",
    make=_make,
    is_stored=True,
    columns=(
        Column("scheduler", "the scheduler's log, such as scheduler_0_tp0"),
        Column("at_us", "when, on the clock of the scheduler's host", "moment"),
        Column("running", "requests in the running batch", "count"),
        Column("waiting", "requests that wait for a place in it", "count"),
        Column("batch_size", "requests of the batch that began then, which may be one of prompts", "count"),
        Column(
            "kv_cache_running_share",
            "of the key-value cache what running requests hold; null where it was not logged",
            "share",
        ),
        Column("kv_cache_used_share", "the same with what is only kept for later prompts", "share"),
    ),
)
