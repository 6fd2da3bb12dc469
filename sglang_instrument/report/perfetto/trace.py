"""Write a run as a Perfetto trace: one track per request below its worker; one step in memory at a time."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple

import polars as pl

from sglang_instrument.analysis.answers.engine.round_trips import ahead_us
from sglang_instrument.analysis.answers.gaps import concurrency, loop_blocks
from sglang_instrument.analysis.answers.unfinished import open_spans
from sglang_instrument.analysis.reading.all_fields import TEXT_COLUMNS, with_texts
from sglang_instrument.analysis.reading.files import File, RunFiles
from sglang_instrument.analysis.run.opening import Run
from sglang_instrument.analysis.timing.lanes import ROUNDING_US, WRITING_US
from sglang_instrument.analysis.timing.nesting import nest
from sglang_instrument.report.perfetto.annotations import annotated
from sglang_instrument.report.perfetto.gauges import gauges, gpu_gauges
from sglang_instrument.report.perfetto.lag import lags
from sglang_instrument.report.perfetto.lanes import Slice, assign_lanes, write_lanes
from sglang_instrument.report.perfetto.packets import Packets, Value
from sglang_instrument.safe_files.output import writing_output
from sglang_instrument.schema import LOOP_BLOCK

_VALUES: Final = (
    "turn",
    "response_tokens",
    "tool",
    "finish_reason",
    "error",
    "turns",
    "reward",
    "active_sec",
    "device_sec",
)
_OF_WORKER: Final = ("step", "validate", "worker")
_ENGINE: Final = ("generate", "engine")


@dataclass
class WrittenTrace:
    """What was written.

    Attributes:
        slices: Records with a duration; instants: instant events.
        requests: Tracks of requests; open: spans that never ended.
        offsets_sec: By the stem of a process's files, how far its clock was ahead, which was subtracted.
        window_ns: The first and the last time; None if nothing was written.
    """

    slices: int = 0
    instants: int = 0
    requests: int = 0
    open: int = 0
    offsets_sec: dict[str, float] | None = None
    window_ns: tuple[int, int] | None = None


def write_run(
    packets: Packets,
    run: Run,
    steps: Collection[int] | None = None,
    validate: bool | None = None,
    progress: Callable[[int, int], object] | None = None,
) -> WrittenTrace:
    """Write the events of a run.

    Args:
        packets: Where to write.
        run: The run.
        steps: Only these steps.
        validate: Only training, or only validation.
        progress: Called with the number of steps written so far and the number of all.
    """
    groups = _groups(run.files, steps, validate)
    ahead = ahead_us(run)
    writer = _RunWriter(packets, _by_track(run, ahead))
    writer.written.offsets_sec = {name: microseconds / 1e6 for name, microseconds in ahead.items()}
    for number, files in enumerate(groups):
        writer.write(replace(run, files=RunFiles(files)))
        if progress is not None:
            progress(number + 1, len(groups))
    writer.write_counters(run, groups)
    writer.write_open(run, steps, validate)
    if writer.written.window_ns is not None:
        packets.clock(writer.written.window_ns[0])
    packets.flush()
    return writer.written


def _by_track(run: Run, ahead: Mapping[str, int]) -> dict[tuple[str, int], int]:
    """Return by role and number, as tracks are named, how many nanoseconds a clock is ahead."""
    places = {file.place.stem: file.place for file in run.files if file.place is not None}
    return {(places[name].role, places[name].worker): ahead_us * 1000 for name, ahead_us in ahead.items()}


def _groups(files: Iterable[File], steps: Collection[int] | None, validate: bool | None) -> list[list[File]]:
    """Return the files of each step, in order; files outside step folders form groups of their own."""
    groups: dict[tuple[bool, int, bool], list[File]] = {}
    for file in files:
        place = file.place
        if place is None or (steps is not None and place.step not in steps):
            continue
        if validate not in (None, place.validate):
            continue
        key = (place.step is None, place.step or 0, bool(place.validate))
        groups.setdefault(key, []).append(file)
    return [groups[key] for key in sorted(groups)]


class _RunWriter:
    def __init__(self, packets: Packets, offsets_ns: dict[tuple[str, int], int]) -> None:
        self._packets = packets
        self._offsets = offsets_ns
        self._processes: dict[tuple[str, int], int] = {}
        self._tracks: dict[tuple[Any, ...], int] = {}
        self._flows = 0
        self.written = WrittenTrace()

    def write(self, run: Run) -> None:
        """Write the events of a step."""
        records = with_texts(run.read_records(texts=True))
        slices: dict[_TrackOwner, list[Slice]] = {}
        for key, piece in _slices(nest(records)):
            slices.setdefault(key, []).append(piece)
        instants: dict[_TrackOwner, list[_Instant]] = {}
        for key, moment in _instants(records.filter(pl.col("duration_sec").is_null())):
            instants.setdefault(key, []).append(moment)
        for key in sorted(dict.fromkeys([*slices, *instants]), key=_order):  # requests as they began
            self._write_track(key, slices.get(key, []), instants.get(key, []))

    def _write_track(self, key: _TrackOwner, slices: list[Slice], instants: list[_Instant]) -> None:
        """Write the events of a request, or of none, on a track of its own."""
        track = self._track_of(key)
        offset = self._offset(key.role, key.worker)
        for piece in slices:
            piece.start_ns -= offset
            piece.end_ns -= offset
        if key.request_id is not None:
            self._join_turns(slices)
        write_lanes(self._packets, track, assign_lanes(slices))
        for name, category, at_ns, values in instants:
            self._packets.instant(track, at_ns - offset, name, category, values)
        self._widen([at_ns for piece in slices for at_ns in (piece.start_ns, piece.end_ns)])
        self.written.slices += len(slices)
        self.written.instants += len(instants)

    def _widen(self, instants: list[int]) -> None:
        """Extend the window to include some times."""
        if instants:
            window = self.written.window_ns or (instants[0], instants[0])
            self.written.window_ns = (min(window[0], *instants), max(window[1], *instants))

    def _track_of(self, key: _TrackOwner) -> int:
        process = self._process(key.role, key.worker)
        if key.request_id is None:
            name = "events" if key.step is None else "validation" if key.validate else "steps"
            return self._track(process, (process, name), name, 0)
        word = "no step" if key.step is None else f"{'validation' if key.validate else 'step'} {key.step}"
        group = self._track(process, (process, word), f"requests of {word}", 2)
        self.written.requests += 1
        return self._packets.track(group, key.request_id)

    def _join_turns(self, slices: list[Slice]) -> None:
        """Join the first engine call of each turn of a request by arrows."""
        calls: dict[Value, Slice] = {}
        for piece in sorted(slices, key=lambda piece: (piece.start_ns, -piece.end_ns)):
            if piece.category in _ENGINE and "turn" in piece.values:
                calls.setdefault(piece.values["turn"], piece)
        if len(calls) > 1:
            self._flows += 1
            for call in calls.values():
                call.flow = self._flows
            call.last = True

    def write_counters(self, run: Run, groups: list[list[File]]) -> None:
        """Write requests in flight, how late the event loops were, how full the schedulers were; GPUs."""
        files = [file for group in groups for file in group]
        written_steps = {(file.place.step, file.place.validate) for file in files if file.place is not None}
        changes = _in_flight(run)
        for (step, validate, worker), rows in changes.group_by(*_OF_WORKER, maintain_order=True):
            if (step, validate) in written_steps:
                self._count(worker, rows)
        for worker, at_us, lag_sec in lags(run, files):
            process = self._process("worker", worker)
            track = self._counter(process, ("lag", worker), "event loop lag", "ms")
            at_ns = at_us * 1000 - self._offset("worker", worker)
            self._packets.amount(track, at_ns - round(lag_sec * 1e9), lag_sec * 1e3)
            self._packets.amount(track, at_ns, 0.0)
        self._write_blocks(files)
        for place, name, unit, values in gauges(run, files):
            process = self._process(place.role, place.worker)
            track = self._counter(process, ("gauge", place.stem, name), name, unit)
            for at_us, value in values:
                self._packets.amount(track, at_us * 1000, value)
        first_ns, last_ns = self.written.window_ns or (0, 0)
        for host, gpu, name, unit, values in gpu_gauges(run, first_ns // 1000, last_ns // 1000):
            track = self._counter(self._process(f"GPU of {host}", gpu), ("gpu", host, gpu, name), name, unit)
            for at_us, value in values:
                self._packets.amount(track, at_us * 1000, value)

    def _count(self, worker: Any, changes: pl.DataFrame) -> None:
        track = self._counter(self._process("worker", worker), ("flight", worker), "in flight", "requests")
        offset = self._offset("worker", worker)
        for at_us, in_flight in changes.select("at_us", "in_flight").iter_rows():
            self._packets.count(track, at_us * 1000 - offset, in_flight)

    def write_open(self, run: Run, steps: Collection[int] | None, validate: bool | None) -> None:
        """Write spans that never ended, up to when they were last reported, on a track of their own."""
        by_worker: dict[int, list[Slice]] = {}
        never_ended = [
            span for span in open_spans(run, None, validate) if steps is None or span.step in steps
        ]
        for number, span in enumerate(never_ended):
            offset = self._offset("worker", span.worker)
            facts = {
                "unended": "lasts until its last report",
                "request_id": span.request_id,
                "at": span.place,
            }
            values: dict[str, Value] = {key: value for key, value in facts.items() if value is not None}
            begun, seen = span.begun_us * 1000 - offset, span.seen_us * 1000 - offset
            piece = Slice(begun, seen, span.event, span.phase, values, number, parent=None)
            by_worker.setdefault(span.worker, []).append(piece)
        for worker, slices in by_worker.items():
            process = self._process("worker", worker)
            track = self._track(process, ("open", worker), "unended", 1)
            write_lanes(self._packets, track, assign_lanes(slices))
            self._widen([at_ns for piece in slices for at_ns in (piece.start_ns, piece.end_ns)])
            self.written.open += len(slices)

    def _write_blocks(self, files: list[File]) -> None:
        """Write when an event loop was blocked, and by what."""
        workers = [file for file in files if file.place is not None and file.place.role == "worker"]
        for row in loop_blocks(workers).iter_rows(named=True):
            worker = row["worker"]
            process = self._process("worker", worker)
            track = self._track(process, ("blocked", worker), "event loop blocked", 1)
            end = row["at_us"] * 1000 - self._offset("worker", worker)
            values = {key: row[key] for key in ("culprit", "in_span") if row[key]}
            begin = end - round(row["blocked_sec"] * 1e9)
            self._packets.begin(track, begin, "event_loop_block", "loop", values)
            self._packets.end(track, end)
            self.written.slices += 1

    def _offset(self, role: str, worker: int) -> int:
        return self._offsets.get((role, worker), 0)

    def _process(self, role: str, worker: int) -> int:
        key = (role, worker)
        if key not in self._processes:
            pid = 1000 + worker if role == "worker" else 100_000 + len(self._processes)
            self._processes[key] = self._packets.process(pid, f"{role} {worker}")
        return self._processes[key]

    def _track(self, parent: int, key: tuple[Any, ...], name: str, rank: int) -> int:
        if key not in self._tracks:
            self._tracks[key] = self._packets.track(parent, name, rank)
        return self._tracks[key]

    def _counter(self, parent: int, key: tuple[Any, ...], name: str, unit: str) -> int:
        if key not in self._tracks:
            self._tracks[key] = self._packets.counter(parent, name, unit)
        return self._tracks[key]


def _in_flight(run: Run) -> pl.DataFrame:
    """Return the changes of the number of requests in flight per worker, with their times in microseconds."""
    first = run.digest.of_workers().requests.group_by(_OF_WORKER).agg(begun=pl.col("start_us").min())
    changes = concurrency(run.digest).join(first, on=_OF_WORKER, how="left", maintain_order="left")
    return changes.with_columns(at_us=pl.col("begun") + (pl.col("at_sec") * 1e6).round().cast(pl.Int64))


class _TrackOwner(NamedTuple):
    """The owner of a track: a request, or, if that is None, everything else of a process."""

    role: str
    worker: int
    step: int | None
    validate: bool
    request_id: str | None
    source: int


_Instant = tuple[str, str, int, dict[str, Value]]
_WORDS: Final = ("event", "phase", "role", "tool", "finish_reason", "error")


def _order(key: _TrackOwner) -> tuple[Any, ...]:
    return key.role, key.worker, key.request_id is not None


def _slices(spans: pl.DataFrame) -> Iterator[tuple[_TrackOwner, Slice]]:
    for row in _rows(spans, "start_us", "span", "parent", "exact"):
        key, event, phase, end_us, values, (start_us, number, parent, exact) = row
        if event == LOOP_BLOCK and key.role == "worker":
            continue  # blocks have a track of their own, with the culprit
        slack_us = ROUNDING_US if exact else WRITING_US
        values_of_slice = (start_us * 1000, end_us * 1000, event, phase, values, number, parent)
        yield key, Slice(*values_of_slice, slack_ns=slack_us * 1000)


def _instants(points: pl.DataFrame) -> Iterator[tuple[_TrackOwner, _Instant]]:
    for key, event, phase, end_us, values, _ in _rows(points):
        yield key, (event, phase, end_us * 1000, values)


def _rows(table: pl.DataFrame, *more: str) -> Iterator[tuple[Any, ...]]:
    """Yield key, event, phase, end, values and more columns of each row, in the order of time."""
    columns_of_row = ("event", "phase", "end_us")
    columns = [*_TrackOwner._fields, *columns_of_row, *_VALUES, *TEXT_COLUMNS, *more]
    ordered = table.sort("start_us", maintain_order=True).with_columns(pl.col(_WORDS).cast(pl.String))
    keys, front = len(_TrackOwner._fields), len(_TrackOwner._fields) + len(columns_of_row)
    back = front + len(_VALUES)
    rest = back + len(TEXT_COLUMNS)
    for row in ordered.select(columns).iter_rows():
        values = {
            name: value for name, value in zip(_VALUES, row[front:back], strict=True) if value is not None
        }
        if "turn" in values:
            values["turn"] += 1  # people count from 1
        values |= annotated(row[back], row[back + 1], values)
        yield _TrackOwner(*row[:keys]), *row[keys:front], values, row[rest:]


def write_file(path: Path, write: Callable[[Packets], Any]) -> Any:
    """Write a trace to a file that appears only when it is complete; return the result of `write`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with writing_output(path) as stream:
        packets = Packets(stream)
        result = write(packets)
        packets.flush()
    return result
