"""Turn the folder of a run into answers; needs the extra `analysis`, and nothing that training needs.

`open_run(folder)` reads a run. The other functions are pure: they turn tables of a run into tables. Most of
them need `Run.digest`; some need `Run.spans`, which holds every span in memory.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sglang_instrument.analysis.clocks import clock_table as clock_table
    from sglang_instrument.analysis.digest import Digest as Digest
    from sglang_instrument.analysis.events import event_table as event_table
    from sglang_instrument.analysis.gaps import concurrency as concurrency
    from sglang_instrument.analysis.gaps import loop_blocks as loop_blocks
    from sglang_instrument.analysis.gaps import plateaus as plateaus
    from sglang_instrument.analysis.gaps import standstill as standstill
    from sglang_instrument.analysis.health import Health as Health
    from sglang_instrument.analysis.lengths import length_table as length_table
    from sglang_instrument.analysis.lengths import reward_by_length as reward_by_length
    from sglang_instrument.analysis.nesting import nest as nest
    from sglang_instrument.analysis.requests import cdf_table as cdf_table
    from sglang_instrument.analysis.requests import request_table as request_table
    from sglang_instrument.analysis.requests import waterfall as waterfall
    from sglang_instrument.analysis.round_trips import process_clocks as process_clocks
    from sglang_instrument.analysis.round_trips import round_trip_table as round_trip_table
    from sglang_instrument.analysis.run import Run as Run
    from sglang_instrument.analysis.run import open_run as open_run
    from sglang_instrument.analysis.steps import accounting as accounting
    from sglang_instrument.analysis.steps import step_table as step_table
    from sglang_instrument.analysis.steps import worker_table as worker_table
    from sglang_instrument.analysis.turns import tool_table as tool_table
    from sglang_instrument.analysis.turns import turn_counts as turn_counts
    from sglang_instrument.analysis.turns import turn_table as turn_table
    from sglang_instrument.analysis.verdict import Finding as Finding
    from sglang_instrument.analysis.verdict import find as find
    from sglang_instrument.analysis.walls import split_wall_time as split_wall_time
    from sglang_instrument.analysis.whatif import Rules as Rules
    from sglang_instrument.analysis.whatif import what_if as what_if
    from sglang_instrument.analysis.workers import Chain as Chain
    from sglang_instrument.analysis.workers import barrier_table as barrier_table
    from sglang_instrument.analysis.workers import blame_table as blame_table
    from sglang_instrument.analysis.workers import chain_of as chain_of

_HOMES = {
    "Chain": "workers",
    "Digest": "digest",
    "Finding": "verdict",
    "Health": "health",
    "Rules": "whatif",
    "Run": "run",
    "accounting": "steps",
    "barrier_table": "workers",
    "blame_table": "workers",
    "cdf_table": "requests",
    "chain_of": "workers",
    "clock_table": "clocks",
    "concurrency": "gaps",
    "event_table": "events",
    "find": "verdict",
    "length_table": "lengths",
    "loop_blocks": "gaps",
    "nest": "nesting",
    "open_run": "run",
    "plateaus": "gaps",
    "process_clocks": "round_trips",
    "request_table": "requests",
    "reward_by_length": "lengths",
    "round_trip_table": "round_trips",
    "split_wall_time": "walls",
    "standstill": "gaps",
    "step_table": "steps",
    "tool_table": "turns",
    "turn_counts": "turns",
    "turn_table": "turns",
    "waterfall": "requests",
    "what_if": "whatif",
    "worker_table": "steps",
}

__all__ = [
    "Chain",
    "Digest",
    "Finding",
    "Health",
    "Rules",
    "Run",
    "accounting",
    "barrier_table",
    "blame_table",
    "cdf_table",
    "chain_of",
    "clock_table",
    "concurrency",
    "event_table",
    "find",
    "length_table",
    "loop_blocks",
    "nest",
    "open_run",
    "plateaus",
    "process_clocks",
    "request_table",
    "reward_by_length",
    "round_trip_table",
    "split_wall_time",
    "standstill",
    "step_table",
    "tool_table",
    "turn_counts",
    "turn_table",
    "waterfall",
    "what_if",
    "worker_table",
]


def __getattr__(name: str) -> Any:
    # Import at first use: importing polars alone would make `--help` too slow.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
