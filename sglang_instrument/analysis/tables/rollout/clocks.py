"""Clocks of workers and servers: by how much they differ."""

from __future__ import annotations

from typing import Final

from sglang_instrument.analysis.tables.column import Column
from sglang_instrument.analysis.tables.table import Table

_OFFSET: Final = Column("offset_sec", "by how much it is ahead", "time")
_RESIDUAL: Final = Column("residual_sec", "half of what is left of the differences", "time")
CLOCKS: Final = Table(
    name="clocks",
    row="the clock of a worker, ahead of the median worker's; a terminal prints sentences",
    commands=("workers", "check"),
    columns=(
        Column("worker", "its rank", "id"),
        Column("barriers", "how many barriers tell it", "count"),
        _OFFSET,
        _RESIDUAL,
    ),
)
ROUND_TRIPS: Final = Table(
    name="round_trips",
    row="a caller and a server, whose clocks their calls compare; a terminal prints sentences",
    commands=("workers", "check"),
    columns=(
        Column("client", "the caller's log"),
        Column("server", "the server's log"),
        Column("calls", "how many calls tell it", "count"),
        Column(
            "ahead_at_least_sec",
            "the least by which the server's clock can be ahead",
            "time",
            formerly="low_sec",
        ),
        Column(
            "ahead_at_most_sec",
            "the most; less than the least says that no constant offset fits",
            "time",
            formerly="high_sec",
        ),
        _OFFSET,
        _RESIDUAL,
        Column("same_clock", "whether both read the same clock", "flag"),
    ),
)
