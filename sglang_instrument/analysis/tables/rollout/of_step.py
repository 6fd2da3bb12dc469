"""Declare the columns that steps, and the steps of each worker, have in common."""

from __future__ import annotations

from typing import Final

from sglang_instrument.analysis.tables.column import Column
from sglang_instrument.schema import PHASES

UNACCOUNTED: Final = Column("unaccounted_sec", "time that no part of the step covers", "time", terminal=False)
INTERVAL: Final = Column(
    "interval_sec",
    "from its start to that of the next step or validation; null for the last one of a launch",
    "time",
    terminal=False,
)
REQUESTS: Final = (
    Column("requests", "how many; one that did not end counts with its time so far", "count", gives_way=5),
    Column(
        "response_tokens",
        "tokens that the model wrote; null if not logged",
        "count",
        gives_way=3,
        former_title="tokens",
    ),
    Column("p50_sec", "half of the requests took at most this long", "time", gives_way=1),
    Column("p99_sec", "99 % of the requests took at most this long", "time", gives_way=4),
    Column("max_sec", "the longest request", "time", gives_way=2),
    Column(
        "straggler_share",
        "share of the time from the step's begin to the end of its last request in which only the last 20 % "
        "of the requests run",
        "share",
        formerly="tail",
        former_title="tail",
    ),
)
PHASE_SHARES: Final = tuple(
    Column(
        f"share_{phase}", f"share of phase {phase} in the workers' time", "share", terminal=False, json=False
    )
    for phase in PHASES
)
PHASES_OBJECT: Final = Column(
    "phases",
    "share of each phase in the workers' time, without those of 0",
    "object",
    terminal=False,
    frame=False,
)
