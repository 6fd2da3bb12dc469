"""Turn the folder of a run into answers; needs the extra `analysis`, and nothing that training needs.

`open_run(folder)` reads a run. The other functions take the run, its `digest` (the tables that most of them
need) or a table, and return what the commands answer with. `Run.spans` holds every span in memory.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sglang_instrument.analysis.clocks import clock_table as clock_table
    from sglang_instrument.analysis.compare import comparison_table as comparison_table
    from sglang_instrument.analysis.digest import Digest as Digest
    from sglang_instrument.analysis.engine_calls import reported_calls as reported_calls
    from sglang_instrument.analysis.events import event_table as event_table
    from sglang_instrument.analysis.gaps import concurrency as concurrency
    from sglang_instrument.analysis.gaps import loop_blocks as loop_blocks
    from sglang_instrument.analysis.gaps import plateaus as plateaus
    from sglang_instrument.analysis.gaps import standstill as standstill
    from sglang_instrument.analysis.health import Health as Health
    from sglang_instrument.analysis.join import calls_of_request as calls_of_request
    from sglang_instrument.analysis.join import engine_request_table as engine_request_table
    from sglang_instrument.analysis.join import engine_summary as engine_summary
    from sglang_instrument.analysis.join import explain as explain
    from sglang_instrument.analysis.join import joined_calls as joined_calls
    from sglang_instrument.analysis.lengths import length_table as length_table
    from sglang_instrument.analysis.lengths import reward_by_length as reward_by_length
    from sglang_instrument.analysis.nesting import nest as nest
    from sglang_instrument.analysis.reached import Described as Described
    from sglang_instrument.analysis.reached import read_processes as read_processes
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
    from sglang_instrument.analysis.unfinished import unended_spans as unended_spans
    from sglang_instrument.analysis.unfinished import workers_without_records as workers_without_records
    from sglang_instrument.analysis.verdict import Finding as Finding
    from sglang_instrument.analysis.verdict import findings_of as findings_of
    from sglang_instrument.analysis.verdict import verdict_of as verdict_of
    from sglang_instrument.analysis.walls import split_wall_time as split_wall_time
    from sglang_instrument.analysis.whatif import ASSUMPTIONS as ASSUMPTIONS
    from sglang_instrument.analysis.whatif import Rules as Rules
    from sglang_instrument.analysis.whatif import validation_of as validation_of
    from sglang_instrument.analysis.whatif import what_if as what_if
    from sglang_instrument.analysis.workers import Chain as Chain
    from sglang_instrument.analysis.workers import barrier_table as barrier_table
    from sglang_instrument.analysis.workers import blame_table as blame_table
    from sglang_instrument.analysis.workers import chain_of as chain_of

_HOMES = {
    "ASSUMPTIONS": "whatif",
    "Chain": "workers",
    "Described": "reached",
    "Digest": "digest",
    "Finding": "verdict",
    "Health": "health",
    "Rules": "whatif",
    "Run": "run",
    "accounting": "steps",
    "barrier_table": "workers",
    "blame_table": "workers",
    "calls_of_request": "join",
    "cdf_table": "requests",
    "chain_of": "workers",
    "clock_table": "clocks",
    "comparison_table": "compare",
    "concurrency": "gaps",
    "engine_request_table": "join",
    "engine_summary": "join",
    "event_table": "events",
    "explain": "join",
    "findings_of": "verdict",
    "joined_calls": "join",
    "length_table": "lengths",
    "loop_blocks": "gaps",
    "nest": "nesting",
    "open_run": "run",
    "plateaus": "gaps",
    "process_clocks": "round_trips",
    "read_processes": "reached",
    "reported_calls": "engine_calls",
    "request_table": "requests",
    "reward_by_length": "lengths",
    "round_trip_table": "round_trips",
    "split_wall_time": "walls",
    "standstill": "gaps",
    "step_table": "steps",
    "tool_table": "turns",
    "turn_counts": "turns",
    "turn_table": "turns",
    "unended_spans": "unfinished",
    "validation_of": "whatif",
    "verdict_of": "verdict",
    "waterfall": "requests",
    "what_if": "whatif",
    "worker_table": "steps",
    "workers_without_records": "unfinished",
}

__all__ = [
    "ASSUMPTIONS",
    "Chain",
    "Described",
    "Digest",
    "Finding",
    "Health",
    "Rules",
    "Run",
    "accounting",
    "barrier_table",
    "blame_table",
    "calls_of_request",
    "cdf_table",
    "chain_of",
    "clock_table",
    "comparison_table",
    "concurrency",
    "engine_request_table",
    "engine_summary",
    "event_table",
    "explain",
    "findings_of",
    "joined_calls",
    "length_table",
    "loop_blocks",
    "nest",
    "open_run",
    "plateaus",
    "process_clocks",
    "read_processes",
    "reported_calls",
    "request_table",
    "reward_by_length",
    "round_trip_table",
    "split_wall_time",
    "standstill",
    "step_table",
    "tool_table",
    "turn_counts",
    "turn_table",
    "unended_spans",
    "validation_of",
    "verdict_of",
    "waterfall",
    "what_if",
    "worker_table",
    "workers_without_records",
]


def __getattr__(name: str) -> Any:
    # Import at first use: importing polars alone would make `--help` too slow.
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
