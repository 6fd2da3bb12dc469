"""Find what an own rollout forgot to bind: engine calls without a request, one id for all, no step."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING, Final, NamedTuple

import polars as pl

from sglang_instrument.analysis.reading.records.fields import RequestIds
from sglang_instrument.analysis.run.newest_records import newest_records
from sglang_instrument.schema import kind_of

if TYPE_CHECKING:
    from sglang_instrument.analysis.run.opening import Run

_FEWEST_CALLS: Final = 3  # in a worker's step; a batch is generated in fewer, and has no request
_FEWEST_AT_ONCE: Final = 4
_LEAST_SHARE: Final = 0.02  # of the engine's time; for less, the log is not read again
_PAGE: Final = "docs/how-to/own-rollout.md"


class UnboundCalls(NamedTuple):
    """What was not bound, or bound alike.

    Attributes:
        calls: The engine calls of the rollout workers.
        without_request: Those of them that no request was bound for.
        requests_without_id: Spans of phase "request" that name no id.
        shared_id: The one id of all calls of all steps; None if there are several.
        at_once: How many calls of this id ran at once.
        has_steps: Whether any step was bound.
    """

    calls: int
    without_request: int
    requests_without_id: int
    shared_id: str | None
    at_once: int
    has_steps: bool

    @property
    def sentences(self) -> list[str]:
        """What is missing, and what to write; [] if nothing is."""
        lines = []
        if self.without_request:
            words = f"{self.without_request:,} of {self.calls:,} engine calls belong to no request"
            todo = "`with bind(request_id=...)` around each request"
            if self.requests_without_id:
                words += f", for {self.requests_without_id:,} spans of requests have no id"
                todo = '`with bind(request_id=...), span("request")`'
            lines.append(f"{words}: write {todo} ({_PAGE})")
        if self.shared_id is not None:
            lines.append(
                f"all {self.calls:,} engine calls of all steps belong to one request, {self.shared_id!r}, up "
                f"to {self.at_once} at once: give each request an id of its own ({_PAGE})"
            )
        if not self.has_steps:
            lines.append(f"no step was bound: write `with step(n)` around each step ({_PAGE})")
        return lines


def unbound_calls(run: Run) -> UnboundCalls:
    """Return what a rollout forgot to bind. The log is read again only where something seems to be missing.

    Logs of other projects, and runs whose trainer's table binds the ids, have nothing to bind.
    """
    nothing_missing = UnboundCalls(0, 0, 0, None, 0, True)
    if run.other is not None:
        return nothing_missing
    shared_id = _shared_id(run)
    has_steps = not run.health.outside or run.health.outside < run.health.records
    if shared_id is None and _share_outside(run) < _LEAST_SHARE:
        return nothing_missing._replace(has_steps=has_steps)
    return _counted(run, shared_id)._replace(has_steps=has_steps)


def _share_outside(run: Run) -> float:
    """Return the share of calls outside of any request in the engine's time on the critical paths."""
    path = run.digest.of_workers().path.filter((pl.col("phase") == "generate") & ~pl.col("contains"))
    took_us = pl.col("end_us") - pl.col("start_us")
    outside_us, all_us = path.select(
        outside=took_us.filter(pl.col("request_id").is_null()).sum(), every=took_us.sum()
    ).row(0)
    return outside_us / all_us if all_us else 0.0


def _shared_id(run: Run) -> str | None:
    """Return the one id of the requests of several steps; `span("request")` makes attempts of one id."""
    requests = run.digest.of_workers().requests
    steps = requests.select("step", "validate").n_unique()
    if steps < 2 or requests["request_id"].n_unique() != 1:
        return None
    shared: str | None = requests["request_id"][0]
    return shared


def _counted(run: Run, shared_id: str | None) -> UnboundCalls:
    files = [file for file in run.files if file.place is not None and file.place.role == "worker"]
    containers = _containers(run)
    calls, without_id = 0, 0
    in_steps: dict[str, int] = defaultdict(int)
    ends: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for file, line, ids in newest_records(run, files, RequestIds):
        phase = line.phase or kind_of(line.event).phase
        if line.duration_sec is None:
            continue
        without_id += phase == "request" and ids.request_id is None
        if phase != "generate" or line.event in containers:
            continue
        calls += 1
        in_steps[file.path] += ids.request_id is None
        if line.start_us is not None:
            ends[file.path] += [(line.start_us, 1), (line.end_us, -1)]
    without_request = sum(number for number in in_steps.values() if number >= _FEWEST_CALLS)
    at_once = max(map(_most_at_once, ends.values()), default=0)  # in one worker: each may have a batch
    if shared_id is not None and (without_request or at_once < _FEWEST_AT_ONCE):
        shared_id = None
    return UnboundCalls(calls, without_request, without_id, shared_id, at_once, True)


def _containers(run: Run) -> set[str]:
    """Return the events of phase "generate" that only contain calls, such as that of a whole batch."""
    path = run.digest.of_workers().path.filter(pl.col("phase") == "generate")
    kinds = path.group_by("event").agg(pl.col("contains").any())
    return set(kinds.filter("contains")["event"])


def _most_at_once(ends: list[tuple[int, int]]) -> int:
    most, running = 0, 0
    for _, change in sorted(ends):
        running += change
        most = max(most, running)
    return most
