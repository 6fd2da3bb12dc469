"""Estimate how far the clocks of engines' processes differ: a call contains the engine's work for it."""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import polars as pl

from sglang_instrument.analysis.answers.engine.records import iter_records
from sglang_instrument.analysis.reading.files import controls_of
from sglang_instrument.analysis.reading.records.engine_fields import EngineFields, rids_of
from sglang_instrument.analysis.reading.records.lines import Line
from sglang_instrument.analysis.run.cached_tables import cached_table, made_once
from sglang_instrument.analysis.run.clocks import clock_table
from sglang_instrument.schema import EVENTS, LOG_OPENED

if TYPE_CHECKING:
    from sglang_instrument.analysis.reading.files import File
    from sglang_instrument.analysis.run.opening import Run

_TOGETHER_SEC: Final = 0.05  # workers on one clock leave a barrier within this time
_SAME_ANCHOR_US: Final = 10_000  # processes of one host read the same two clocks, at slightly different times
#: This span ends when the generator is asked for one more item, which may be after its caller's span ended.
_OPEN_ENDED: Final = "engine_stream"
_PAIRS: Final[dict[str, Any]] = {
    "client": pl.String,
    "server": pl.String,
    "calls": pl.Int64,
    "ahead_at_least_sec": pl.Float64,
    "ahead_at_most_sec": pl.Float64,
    "offset_sec": pl.Float64,
    "residual_sec": pl.Float64,
    "same_clock": pl.Boolean,
}
_CLOCKS: Final[dict[str, Any]] = {
    "process": pl.String,
    "offset_sec": pl.Float64,
    "residual_sec": pl.Float64,
    "by": pl.String,
}


@dataclass
class _CallSpan:
    """The outermost span of a process that names an engine request; times are microseconds."""

    process: str
    start: int
    end: int
    #: Whether its caller gave up, or another span with this rid lies outside it: then it gives no bounds.
    doubtful: bool


@dataclass
class _Bounds:
    """The lowest and highest possible lead of a server's clock over a client's, in microseconds."""

    low: int
    high: int
    rids: set[str] = field(default_factory=set)


def round_trip_table(run: Run) -> pl.DataFrame:
    """Return one row for each pair of a calling process and an engine process that worked for it.

    From the cache, unless the run's files changed.

    Returns:
        client, server: the stems of their files; calls: how many calls both logged; ahead_at_least_sec,
        ahead_at_most_sec: bounds of the lead of the server's clock; the least above the most means that no
        constant offset fits; offset_sec: the
        middle of the bounds; residual_sec: half their distance; same_clock: both run on one host and read the
        same clock: then offset and residual are 0.
    """
    return cached_table(run, "round_trips", lambda: _read_round_trips(run))


def _read_round_trips(run: Run) -> pl.DataFrame:
    whole = [(file.place, file) for file in run.files if file.place is not None and file.unreadable is None]
    of_engines = [file for place, file in whole if place.folder == "engine"]
    if not of_engines:
        return pl.DataFrame(schema=_PAIRS)
    calls = _calls(run, [file for place, file in whole if place.folder != "engine"])
    pairs: dict[tuple[str, str], _Bounds] = {}
    for file, line, fields in iter_records(run, of_engines):
        start, end = line.start_us or 0, _sure_end(line, fields)
        for rid in rids_of(fields) if line.event in EVENTS else ():
            call = calls.get(rid)
            if call is None or call.doubtful:
                continue
            low, high = end - call.end, start - call.start
            bounds = pairs.setdefault((call.process, _name(file)), _Bounds(low, high))
            bounds.low, bounds.high = max(bounds.low, low), min(bounds.high, high)
            bounds.rids.add(rid)
    clocks = _clock_numbers(run)
    rows = [_row(pair, bounds, clocks) for pair, bounds in sorted(pairs.items())]
    return pl.DataFrame(rows, schema=_PAIRS)


def _calls(run: Run, files: list[File]) -> dict[str, _CallSpan]:
    """Return the call of each `rid`."""
    calls: dict[str, _CallSpan] = {}
    for file, line, fields in iter_records(run, files, keys=("rid",)):
        if not isinstance(fields.rid, str) or line.duration_sec is None:
            continue
        call = _CallSpan(_name(file), line.start_us or 0, line.end_us, line.error is not None)
        before = calls.get(fields.rid)
        calls[fields.rid] = call if before is None else _outer(before, call)
    return calls


def _outer(earlier: _CallSpan, other: _CallSpan) -> _CallSpan:
    """Return the span that contains the other; two disjoint ones, as of a resumed request, are doubtful."""
    outer, inner = sorted((earlier, other), key=lambda call: call.start - call.end)
    around = outer.process == inner.process and outer.start <= inner.start and inner.end <= outer.end + 1
    return _CallSpan(outer.process, outer.start, outer.end, earlier.doubtful or other.doubtful or not around)


def _sure_end(line: Line, fields: EngineFields) -> int:
    """Return up to when a record certainly lies within the call.

    Of a record about a batch, only the start does: the batch may go on after this request's answer was sent.
    The same holds for an aborted request.
    """
    whole = isinstance(fields.rid, str) and line.error is None and fields.finish_reason != "abort"
    return line.end_us if whole and line.event != _OPEN_ENDED else line.start_us or 0


def _row(pair: tuple[str, str], bounds: _Bounds, clocks: dict[str, int]) -> dict[str, Any]:
    client, server = pair
    same = client in clocks and clocks.get(server) == clocks[client]
    middle, half = (bounds.low + bounds.high) / 2e6, abs(bounds.high - bounds.low) / 2e6
    return {
        "client": client,
        "server": server,
        "calls": len(bounds.rids),
        "ahead_at_least_sec": bounds.low / 1e6,
        "ahead_at_most_sec": bounds.high / 1e6,
        "offset_sec": 0.0 if same else middle,
        "residual_sec": 0.0 if same else half,
        "same_clock": same,
    }


def _name(file: File) -> str:
    return file.place.stem if file.place is not None else file.path


def _clock_numbers(run: Run) -> dict[str, int]:
    """Return processes with the number of their clock: those of one host with equal anchors read one clock.

    Two hosts may have the same name, but almost never the same anchor.
    """
    numbers: dict[str, int] = {}
    number, before = 0, ("", 0)
    for name, anchor in sorted(_anchors(run).items(), key=lambda item: item[1]):
        if anchor[0] != before[0] or anchor[1] - before[1] > _SAME_ANCHOR_US:
            number += 1
        numbers[name], before = number, anchor
    return numbers


def _anchors(run: Run) -> dict[str, tuple[str, int]]:
    """Return the host of each process, and its wall clock minus its monotonic clock, in microseconds."""
    anchors: dict[str, tuple[str, int]] = {}
    for file, control in controls_of(run.files, LOG_OPENED):
        header = control.extra
        if header.host is not None and header.wall_ns is not None and header.perf_ns is not None:
            anchors.setdefault(_name(file), (header.host, (header.wall_ns - header.perf_ns) // 1000))
    return anchors


def process_clocks(run: Run, pairs: pl.DataFrame | None = None) -> pl.DataFrame:
    """Return how far the clock of each process is ahead of the median worker's, as far as known.

    Without barriers, the reference is the process that called most often.

    Args:
        run: The run.
        pairs: The result of `round_trip_table`, if already computed.

    Returns:
        process; offset_sec; residual_sec: the possible error of the offset, summed along the links; by: the
        evidence: "barriers", "reference", "same clock as NAME" or "round trips of NAME".
    """
    pairs = round_trip_table(run) if pairs is None else pairs
    links = _clock_links(run, pairs)
    waiting = [(residual, name, offset, by) for name, offset, residual, by in _known(run, pairs)]
    heapq.heapify(waiting)
    clocks: dict[str, dict[str, Any]] = {}
    while waiting:  # Dijkstra's algorithm: along the links with the smallest sum of residuals
        residual, name, offset, by = heapq.heappop(waiting)
        if name in clocks:
            continue
        clocks[name] = {"process": name, "offset_sec": offset, "residual_sec": residual, "by": by}
        for other, more, left in links.get(name, ()):
            kind = "round trips" if left is not None else "same clock"
            words = f"{kind} {'of' if left is not None else 'as'} {name}"
            heapq.heappush(waiting, (residual + (left or 0.0), other, offset + more, words))
    return pl.DataFrame([clocks[name] for name in sorted(clocks)], schema=_CLOCKS)


def _known(run: Run, pairs: pl.DataFrame) -> Iterator[tuple[str, float, float, str]]:
    """Yield the processes whose clocks are known without round trips."""
    ranks: dict[int, list[str]] = {}
    for file in run.files:
        if file.place is not None and file.place.role == "worker":
            ranks[file.place.worker] = list(dict.fromkeys([*ranks.get(file.place.worker, []), _name(file)]))
    at_barriers = clock_table(run.digest)
    for worker, offset, residual in at_barriers.select("worker", "offset_sec", "residual_sec").iter_rows():
        apart = abs(offset) > max(_TOGETHER_SEC, residual)
        for name in ranks.get(worker, ()):
            # Workers on one clock do not leave in the same millisecond either: such a difference is no
            # offset.
            yield name, offset if apart else 0.0, residual, "barriers"
    if at_barriers.is_empty() and not pairs.is_empty():
        most = (
            pairs.group_by("client")
            .agg(pl.col("calls").sum())
            .sort("calls", "client", descending=[True, False])
        )
        yield most["client"][0], 0.0, 0.0, "reference"


def _clock_links(run: Run, pairs: pl.DataFrame) -> dict[str, list[tuple[str, float, float | None]]]:
    """Return from each process the others whose clocks are known relative to its own: name, offset, residual.

    The residual is None between processes that read the same clock.
    """
    links: dict[str, list[tuple[str, float, float | None]]] = {}
    for row in pairs.filter(~pl.col("same_clock")).iter_rows(named=True):
        client, server, offset = row["client"], row["server"], row["offset_sec"]
        links.setdefault(client, []).append((server, offset, row["residual_sec"]))
        links.setdefault(server, []).append((client, -offset, row["residual_sec"]))
    by_clock: dict[int, str] = {}
    for name, number in sorted(_clock_numbers(run).items()):
        if number in by_clock:
            links.setdefault(name, []).append((by_clock[number], 0.0, None))
            links.setdefault(by_clock[number], []).append((name, 0.0, None))
        by_clock.setdefault(number, name)
    return links


def ahead_us(run: Run) -> dict[str, int]:
    """Return how many microseconds the clock of each process is ahead, where the evidence is sufficient.

    A process is taken to read the clock of another one, known more precisely, that its offset does not differ
    from by more than its residual: applying its own could separate events that belong together. So is the
    median worker's clock, whose offset is 0.
    """
    return made_once(run, "ahead_us", lambda: _ahead_us(run))


def _ahead_us(run: Run) -> dict[str, int]:
    clocks = [0.0]
    moved = {}
    rows = process_clocks(run).sort("residual_sec", "process").select("process", "offset_sec", "residual_sec")
    for name, offset, residual in rows.iter_rows():
        apart, nearest = min((abs(clock - offset), clock) for clock in clocks)
        if apart > residual:
            nearest = offset
            clocks.append(offset)
        if nearest != 0.0:
            moved[name] = round(nearest * 1e6)
    return moved


def hosts_ahead_us(run: Run, ahead: Mapping[str, int]) -> dict[str, int]:
    """Return the same per host whose processes agree, to align other files written there, such as traces.

    Args:
        run: The run.
        ahead: As `ahead_us` returns it.
    """
    hosts: dict[str, set[int]] = {}
    for name, (host, _) in _anchors(run).items():
        hosts.setdefault(host, set()).add(ahead.get(name, 0))
    return {host: offsets.pop() for host, offsets in hosts.items() if len(offsets) == 1}


def of_worker(ahead: Mapping[str, int]) -> pl.Expr:
    """Return `ahead_us` of the worker whose rank is in column `worker`."""
    names = pl.format("worker_{}", "worker")
    return names.replace_strict(ahead, default=0, return_dtype=pl.Int64)
