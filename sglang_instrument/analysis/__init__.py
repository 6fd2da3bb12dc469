"""Turn the folder of a run into answers; needs the extra `analysis`, and nothing that training needs.

`open_run(folder)` reads a run; its methods answer the usual questions. The other functions take the run, its
`digest` (the tables that most of them need) or a table, and return what the commands answer with. `Run.spans`
holds every span in memory.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from sglang_instrument.analysis.answers.asynchronous.fates import sample_fates as sample_fates
    from sglang_instrument.analysis.answers.asynchronous.staleness import staleness_table as staleness_table
    from sglang_instrument.analysis.answers.asynchronous.waste import waste_table as waste_table
    from sglang_instrument.analysis.answers.call_times import paths_of as paths_of
    from sglang_instrument.analysis.answers.engine_calls import reported_calls as reported_calls
    from sglang_instrument.analysis.answers.events import event_table as event_table
    from sglang_instrument.analysis.answers.gaps import concurrency as concurrency
    from sglang_instrument.analysis.answers.gaps import loop_blocks as loop_blocks
    from sglang_instrument.analysis.answers.gaps import plateaus as plateaus
    from sglang_instrument.analysis.answers.gaps import standstill as standstill
    from sglang_instrument.analysis.answers.join import calls_of_request as calls_of_request
    from sglang_instrument.analysis.answers.join import engine_request_table as engine_request_table
    from sglang_instrument.analysis.answers.join import engine_summary as engine_summary
    from sglang_instrument.analysis.answers.join import explain as explain
    from sglang_instrument.analysis.answers.join import joined_calls as joined_calls
    from sglang_instrument.analysis.answers.lengths import length_table as length_table
    from sglang_instrument.analysis.answers.lengths import reward_by_length as reward_by_length
    from sglang_instrument.analysis.answers.lengths import speculation_by_length as speculation_by_length
    from sglang_instrument.analysis.answers.lengths import speculation_table as speculation_table
    from sglang_instrument.analysis.answers.requests import cdf_table as cdf_table
    from sglang_instrument.analysis.answers.requests import request_table as request_table
    from sglang_instrument.analysis.answers.requests import waterfall as waterfall
    from sglang_instrument.analysis.answers.round_trips import process_clocks as process_clocks
    from sglang_instrument.analysis.answers.round_trips import round_trip_table as round_trip_table
    from sglang_instrument.analysis.answers.routing.conversations import affinity as affinity
    from sglang_instrument.analysis.answers.routing.conversations import cached_by_turn as cached_by_turn
    from sglang_instrument.analysis.answers.routing.conversations import followed_calls as followed_calls
    from sglang_instrument.analysis.answers.routing.conversations import with_cached as with_cached
    from sglang_instrument.analysis.answers.routing.load import balance as balance
    from sglang_instrument.analysis.answers.routing.load import load_over_time as load_over_time
    from sglang_instrument.analysis.answers.routing.load import server_table as server_table
    from sglang_instrument.analysis.answers.routing.samples import server_samples as server_samples
    from sglang_instrument.analysis.answers.routing.server_calls import server_calls as server_calls
    from sglang_instrument.analysis.answers.servers import server_rows as server_rows
    from sglang_instrument.analysis.answers.servers import window_rows as window_rows
    from sglang_instrument.analysis.answers.steps import step_table as step_table
    from sglang_instrument.analysis.answers.steps import worker_table as worker_table
    from sglang_instrument.analysis.answers.summary import summary_table as summary_table
    from sglang_instrument.analysis.answers.turns import tool_table as tool_table
    from sglang_instrument.analysis.answers.turns import turn_counts as turn_counts
    from sglang_instrument.analysis.answers.turns import turn_table as turn_table
    from sglang_instrument.analysis.answers.unfinished import sightings as sightings
    from sglang_instrument.analysis.answers.unfinished import unended_spans as unended_spans
    from sglang_instrument.analysis.answers.unfinished import (
        workers_without_records as workers_without_records,
    )
    from sglang_instrument.analysis.answers.weights.lineage import lineage as lineage
    from sglang_instrument.analysis.answers.weights.lineage import lineage_by_weights as lineage_by_weights
    from sglang_instrument.analysis.answers.weights.updates import weight_updates as weight_updates
    from sglang_instrument.analysis.answers.workers import Chain as Chain
    from sglang_instrument.analysis.answers.workers import Link as Link
    from sglang_instrument.analysis.answers.workers import barrier_table as barrier_table
    from sglang_instrument.analysis.answers.workers import blame_table as blame_table
    from sglang_instrument.analysis.answers.workers import chain_of as chain_of
    from sglang_instrument.analysis.changes.compare import Comparison as Comparison
    from sglang_instrument.analysis.changes.compare import Condition as Condition
    from sglang_instrument.analysis.changes.compare import compare_runs as compare_runs
    from sglang_instrument.analysis.changes.refill import refill_steps as refill_steps
    from sglang_instrument.analysis.changes.rules import Rules as Rules
    from sglang_instrument.analysis.changes.whatif import ASSUMPTIONS as ASSUMPTIONS
    from sglang_instrument.analysis.changes.whatif import Model as Model
    from sglang_instrument.analysis.changes.whatif import validation_of as validation_of
    from sglang_instrument.analysis.changes.whatif import what_if as what_if
    from sglang_instrument.analysis.digests.digest import Digest as Digest
    from sglang_instrument.analysis.ledger.ledger import step_ledger as step_ledger
    from sglang_instrument.analysis.ledger.ledger import step_windows as step_windows
    from sglang_instrument.analysis.ledger.ledger import worker_ledger as worker_ledger
    from sglang_instrument.analysis.ledger.loop import Loop as Loop
    from sglang_instrument.analysis.ledger.loop_of_run import loop_of as loop_of
    from sglang_instrument.analysis.questions import Report as Report
    from sglang_instrument.analysis.questions import Run as Run
    from sglang_instrument.analysis.questions import open_run as open_run
    from sglang_instrument.analysis.reading.processes_of_run import RunProcesses as RunProcesses
    from sglang_instrument.analysis.reading.processes_of_run import read_processes as read_processes
    from sglang_instrument.analysis.run.clocks import clock_table as clock_table
    from sglang_instrument.analysis.run.health import Health as Health
    from sglang_instrument.analysis.settings.differences import Difference as Difference
    from sglang_instrument.analysis.settings.differences import differing_settings as differing_settings
    from sglang_instrument.analysis.settings.recorded import Setting as Setting
    from sglang_instrument.analysis.settings.recorded import settings_of as settings_of
    from sglang_instrument.analysis.timing.nesting import nest as nest
    from sglang_instrument.analysis.timing.wall_time import split_wall_time as split_wall_time
    from sglang_instrument.analysis.verdict.detectors.weights import weights_findings as weights_findings
    from sglang_instrument.analysis.verdict.evidence.finding import Finding as Finding
    from sglang_instrument.analysis.verdict.verdict import findings_of as findings_of
    from sglang_instrument.analysis.verdict.verdict import verdict_of as verdict_of

_HOMES = {
    "ASSUMPTIONS": "changes.whatif",
    "Chain": "answers.workers",
    "Comparison": "changes.compare",
    "Condition": "changes.compare",
    "Difference": "settings.differences",
    "Digest": "digests.digest",
    "Finding": "verdict.evidence.finding",
    "Health": "run.health",
    "Link": "answers.workers",
    "Loop": "ledger.loop",
    "Model": "changes.whatif",
    "Report": "questions",
    "Rules": "changes.rules",
    "Run": "questions",
    "RunProcesses": "reading.processes_of_run",
    "Setting": "settings.recorded",
    "affinity": "answers.routing.conversations",
    "balance": "answers.routing.load",
    "barrier_table": "answers.workers",
    "blame_table": "answers.workers",
    "cached_by_turn": "answers.routing.conversations",
    "calls_of_request": "answers.join",
    "cdf_table": "answers.requests",
    "chain_of": "answers.workers",
    "clock_table": "run.clocks",
    "compare_runs": "changes.compare",
    "concurrency": "answers.gaps",
    "differing_settings": "settings.differences",
    "engine_request_table": "answers.join",
    "engine_summary": "answers.join",
    "event_table": "answers.events",
    "explain": "answers.join",
    "findings_of": "verdict.verdict",
    "followed_calls": "answers.routing.conversations",
    "joined_calls": "answers.join",
    "length_table": "answers.lengths",
    "lineage": "answers.weights.lineage",
    "lineage_by_weights": "answers.weights.lineage",
    "load_over_time": "answers.routing.load",
    "loop_blocks": "answers.gaps",
    "loop_of": "ledger.loop_of_run",
    "nest": "timing.nesting",
    "open_run": "questions",
    "paths_of": "answers.call_times",
    "plateaus": "answers.gaps",
    "process_clocks": "answers.round_trips",
    "read_processes": "reading.processes_of_run",
    "refill_steps": "changes.refill",
    "reported_calls": "answers.engine_calls",
    "request_table": "answers.requests",
    "reward_by_length": "answers.lengths",
    "round_trip_table": "answers.round_trips",
    "sample_fates": "answers.asynchronous.fates",
    "server_calls": "answers.routing.server_calls",
    "server_rows": "answers.servers",
    "server_samples": "answers.routing.samples",
    "server_table": "answers.routing.load",
    "settings_of": "settings.recorded",
    "sightings": "answers.unfinished",
    "speculation_by_length": "answers.lengths",
    "speculation_table": "answers.lengths",
    "split_wall_time": "timing.wall_time",
    "staleness_table": "answers.asynchronous.staleness",
    "standstill": "answers.gaps",
    "step_ledger": "ledger.ledger",
    "step_table": "answers.steps",
    "step_windows": "ledger.ledger",
    "summary_table": "answers.summary",
    "tool_table": "answers.turns",
    "turn_counts": "answers.turns",
    "turn_table": "answers.turns",
    "unended_spans": "answers.unfinished",
    "validation_of": "changes.whatif",
    "verdict_of": "verdict.verdict",
    "waste_table": "answers.asynchronous.waste",
    "waterfall": "answers.requests",
    "weight_updates": "answers.weights.updates",
    "weights_findings": "verdict.detectors.weights",
    "what_if": "changes.whatif",
    "window_rows": "answers.servers",
    "with_cached": "answers.routing.conversations",
    "worker_ledger": "ledger.ledger",
    "worker_table": "answers.steps",
    "workers_without_records": "answers.unfinished",
}

__all__ = [
    "ASSUMPTIONS",
    "Chain",
    "Comparison",
    "Condition",
    "Difference",
    "Digest",
    "Finding",
    "Health",
    "Link",
    "Loop",
    "Model",
    "Report",
    "Rules",
    "Run",
    "RunProcesses",
    "Setting",
    "affinity",
    "balance",
    "barrier_table",
    "blame_table",
    "cached_by_turn",
    "calls_of_request",
    "cdf_table",
    "chain_of",
    "clock_table",
    "compare_runs",
    "concurrency",
    "differing_settings",
    "engine_request_table",
    "engine_summary",
    "event_table",
    "explain",
    "findings_of",
    "followed_calls",
    "joined_calls",
    "length_table",
    "lineage",
    "lineage_by_weights",
    "load_over_time",
    "loop_blocks",
    "loop_of",
    "nest",
    "open_run",
    "paths_of",
    "plateaus",
    "process_clocks",
    "read_processes",
    "refill_steps",
    "reported_calls",
    "request_table",
    "reward_by_length",
    "round_trip_table",
    "sample_fates",
    "server_calls",
    "server_rows",
    "server_samples",
    "server_table",
    "settings_of",
    "sightings",
    "speculation_by_length",
    "speculation_table",
    "split_wall_time",
    "staleness_table",
    "standstill",
    "step_ledger",
    "step_table",
    "step_windows",
    "summary_table",
    "tool_table",
    "turn_counts",
    "turn_table",
    "unended_spans",
    "validation_of",
    "verdict_of",
    "waste_table",
    "waterfall",
    "weight_updates",
    "weights_findings",
    "what_if",
    "window_rows",
    "with_cached",
    "worker_ledger",
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
