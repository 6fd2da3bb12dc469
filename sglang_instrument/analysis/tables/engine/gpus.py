"""What the GPUs did, second by second, as followers read them from NVIDIA's driver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from sglang_instrument.analysis.tables.column import Column
from sglang_instrument.analysis.tables.table import Table

if TYPE_CHECKING:
    import polars as pl

    from sglang_instrument.analysis.run.opening import Run


def _make(run: Run) -> pl.DataFrame:
    from sglang_instrument.analysis.answers.routing.gauges import gpu_table

    return gpu_table(run)


GPUS: Final = Table(
    name="gpus",
    row="a second of a GPU, on a host where `watch` or `install(scalars=True)` followed the run",
    make=_make,
    is_stored=True,
    columns=(
        Column("host", "the name of the host"),
        Column("gpu", "its number there, in the driver's order", "id"),
        Column("name", "its model"),
        Column("at_us", "when, on the clock of the host", "moment"),
        Column(
            "busy_share",
            "of the driver's last sampling period, the share in which a kernel ran: also one of few threads",
            "share",
        ),
        Column("memory_used_bytes", "of all processes", "bytes"),
        Column("memory_bytes", "the whole memory", "bytes"),
        Column("power_watts", "of the whole board", "number"),
        Column("sm_clock_mhz", "clock of the multiprocessors", "count"),
        Column("memory_clock_mhz", "clock of the memory", "count"),
        Column(
            "clock_limits",
            "what keeps the clocks down, as power_cap, with spaces between; idle if nothing runs",
        ),
    ),
)
