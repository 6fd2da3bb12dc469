"""Count what the lines of a run say: by process since the run began, and by step and worker."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from sglang_instrument.analysis.reading.field_columns import response_tokens
from sglang_instrument.analysis.reading.folders import Place
from sglang_instrument.analysis.reading.launches import Launch, launch_from
from sglang_instrument.analysis.reading.records.engine_fields import EngineFields
from sglang_instrument.analysis.reading.records.fields import ColumnFields, ControlFields, typed
from sglang_instrument.analysis.reading.records.lines import Line, Rejects, decode
from sglang_instrument.live.counting.endings import Endings
from sglang_instrument.live.counting.endings import StepKey as StepKey
from sglang_instrument.live.counting.engine_calls import MOVES, TAKING_BACK, CallIds, EngineCalls
from sglang_instrument.live.counting.gauges import SchedulerGauges
from sglang_instrument.live.counting.longest import Longest, longest_of
from sglang_instrument.live.counting.parts import (
    EventCount,
    RequestBudget,
    WorkerPart,
    end_us,
    longest_silence_sec,
    parse_open_block,
    parse_open_now,
    start_us,
)
from sglang_instrument.live.counting.processes import Process as Process
from sglang_instrument.live.counting.processes import WorkerKey as WorkerKey
from sglang_instrument.live.counting.tail import TailedFile
from sglang_instrument.schema import (
    CONTROL_EVENTS,
    LOG_CLOSED,
    LOG_OPENED,
    OPEN_BLOCK,
    OPEN_NOW,
    OPEN_SPANS,
    SCHEDULER_GAUGES,
    STEP_CLOSED,
)

_MOST_STEPS: Final = 4  # in progress or just finished
_LAST: Final = 8  # lines, of which the latest tells a process's clock: threads log nearly in order
_TOKEN_PHASES: Final = frozenset({"generate", "engine"})


@dataclass(slots=True)
class _LogWriter:
    """What is known of the writer of one file."""

    process: Process
    resets: int
    run_id: str | None = None
    part: WorkerPart | None = None
    dropped: int = 0
    is_outside: bool = False


class Counts:
    """The state of a run: give it all lines, in the order of each file.

    Args:
        wanted: The run's id, or the begin of it; "": the newest run.

    Attributes:
        run_id: The run that is counted; lines of others count for nothing.
        members: The ids of the runs that are counted: ranks of one launch may have several.
        processes: By role and rank.
        steps: The parts of the newest steps, by role and rank of the worker.
        endings: Which steps are finished.
        calls: Where the engine's open calls are.
        gauges: How full its schedulers are.
        rejects: Lines that are no records.
    """

    def __init__(self, wanted: str = "") -> None:
        self._wanted = wanted
        self.run_id: str | None = None
        self.members: set[str] = set()
        self._launch: Launch | None = None
        self._begun_us: dict[str, int] = {}  # by run: its first header
        self.processes: dict[WorkerKey, Process] = {}
        self.steps: dict[StepKey, dict[WorkerKey, WorkerPart]] = {}
        self.endings = Endings()
        self.calls = EngineCalls()
        self.gauges = SchedulerGauges()
        self.rejects = Rejects()
        self._forgotten: set[StepKey] = set()
        self._budget = RequestBudget()

    def take(self, file: TailedFile, piece: bytes, now: float, stale_sec: float = 0.0) -> None:
        """Take in whole lines of a file.

        Args:
            file: The file; what is known of its writer is kept with it.
            piece: The lines.
            now: Monotonic seconds.
            stale_sec: How long ago the file was last written.
        """
        lines = decode(piece, self.rejects)
        if not lines:
            return
        writer = self._writer(file)
        begun = opened = 0
        for number in [number for number, line in enumerate(lines) if line.event in CONTROL_EVENTS]:
            self._count(lines[begun:number], writer, file.place)
            if lines[number].event == LOG_OPENED:  # perhaps by another run
                self._end(lines[opened:number], writer, file, now, stale_sec)
                opened = number
            self._control(lines[number], writer, file.place)
            begun = number + 1
        self._count(lines[begun:], writer, file.place)
        self._end(lines[opened:], writer, file, now, stale_sec)

    def newest(self) -> StepKey | None:
        """Return the step that began last."""
        return self.in_order()[-1] if self.steps else None

    def in_order(self) -> list[StepKey]:
        """Return the steps that are known, in the order in which they began."""
        begun = {key: min(part.begun_us for part in parts.values()) for key, parts in self.steps.items()}
        return sorted(begun, key=lambda key: begun[key])

    def longest_sec(self) -> dict[str, list[float]]:
        """Return the longest spans of each phase that ended, ascending; phases without any are left out."""
        counted: dict[str, list[tuple[int, Longest]]] = {}
        for process in self.processes.values():
            for seen in process.events.values():
                if seen.longest.spans_sec:
                    counted.setdefault(seen.phase, []).append((seen.count, seen.longest))
        return {phase: longest_of(of_phase) for phase, of_phase in counted.items()}

    def longest_of(self, event: str) -> float:
        """Return the longest span of an event that ended, in any process."""
        counts = (process.events.get(event) for process in self.processes.values())
        return max((count.longest.longest_sec for count in counts if count is not None), default=0.0)

    def _writer(self, file: TailedFile) -> _LogWriter:
        writer = file.owner
        if not isinstance(writer, _LogWriter) or writer.resets != file.resets:
            key = file.place.role, file.place.worker
            process = self.processes.setdefault(key, Process())
            writer = file.owner = _LogWriter(process, file.resets)
        if self.processes.get((file.place.role, file.place.worker)) is not writer.process:  # a new run began
            key = file.place.role, file.place.worker
            writer.process, writer.part = self.processes.setdefault(key, Process()), None
        writer.process.stems.add(file.place.stem)
        return writer

    def _counts(self, writer: _LogWriter) -> bool:
        if writer.run_id is None or self.run_id is None:
            return not self._wanted
        return writer.run_id == self.run_id

    def _end(
        self, lines: Sequence[Line], writer: _LogWriter, file: TailedFile, now: float, stale_sec: float
    ) -> None:
        """Note when a process wrote last, and whether it closed its step."""
        if not lines or not self._counts(writer):
            return
        at_us = max(map(end_us, lines[-_LAST:]))
        if at_us >= writer.process.last_us:  # files of older steps may be read later
            writer.process.heard(lines)
        writer.process.saw(at_us, now - stale_sec)
        if writer.part is not None:
            silence_sec = longest_silence_sec(writer.part.last_us, lines, at_us)
            writer.process.longest_silence_sec = max(writer.process.longest_silence_sec, silence_sec)
            writer.part.last_us = at_us
        if not writer.is_outside:
            self.endings.saw(file.path, file.place, [line.event for line in lines], start_us(lines[0]), now)

    def _count(self, lines: Sequence[Line], writer: _LogWriter, place: Place) -> None:
        if not lines or not self._counts(writer):
            return
        process = writer.process
        process.records += len(lines)
        events, part = process.events, self._part(lines[0], writer, place)
        for line in lines:
            name = line.event
            seen = events.get(name if line.phase is None else (name, line.phase))
            if seen is None:
                seen = process.seen(name, line.phase)
            seen.count += 1
            sec = line.duration_sec
            if sec is not None:
                seen.sec += sec
                if sec > seen.longest.least_sec:
                    seen.longest.note(sec)
            if seen.is_of_engine:
                self._note_engine(process, place, line)
            if seen.is_noted and part is not None:
                self._note(process, part, seen, line)

    def _note_engine(self, process: Process, place: Place, line: Line) -> None:
        if line.event == SCHEDULER_GAUGES:
            self.gauges.note(place, end_us(line), typed(line.extra, EngineFields))
            return
        ids = typed(line.extra, CallIds)
        if line.event in MOVES:
            self.calls.note(line.event, ids)
        if line.event in TAKING_BACK:
            process.taken_back[line.event] += sum(isinstance(rid, str) for rid in ids.each())

    def _note(self, process: Process, part: WorkerPart, seen: EventCount, line: Line) -> None:
        done, failed = part.done, part.failed
        fields = typed(line.extra, ColumnFields)
        process.tokens += part.note(seen, line, fields, _counts_tokens(process, seen, fields))
        process.requests += part.done - done
        process.failed += part.failed - failed

    def _part(self, line: Line, writer: _LogWriter, place: Place) -> WorkerPart | None:
        """Return the part of the step that a file's records belong to; None outside of steps."""
        if writer.part is not None or place.step is None or place.step < 0 or writer.is_outside:
            return writer.part
        key = (place.step, place.validate)
        if key in self._forgotten:
            return None
        parts = self.steps.setdefault(key, {})
        worker = place.role, place.worker
        writer.part = parts.setdefault(worker, WorkerPart(start_us(line), self._budget))
        writer.process.step = key
        if len(self.steps) > _MOST_STEPS:
            self._forget_oldest()
        return writer.part

    def _forget_oldest(self) -> None:
        oldest = min(self.steps, key=lambda key: max(part.begun_us for part in self.steps[key].values()))
        for part in self.steps.pop(oldest).values():  # the writers of its files still know it
            self._budget.requests += len(part.requests)
            part.forget()
        self._forgotten.add(oldest)

    def _control(self, line: Line, writer: _LogWriter, place: Place) -> None:
        fields = typed(line.extra, ControlFields)
        if line.event == LOG_OPENED:
            self._opened(line, fields, writer, place)
            return
        if not self._counts(writer):
            return
        if line.event == LOG_CLOSED:
            writer.process.closed_us = max(writer.process.closed_us, end_us(line))
        part = self._part(line, writer, place)
        if part is None:
            return
        if line.event == STEP_CLOSED:
            part.is_closed, part.open_now, part.block = True, None, None
            part.reported.clear()
            dropped = fields.dropped or 0
            writer.process.lost += max(0, dropped - writer.dropped)
            writer.dropped = dropped
        elif line.event == OPEN_NOW:
            part.open_now = parse_open_now(fields, end_us(line))
            part.is_closed = False  # a step of an asynchronous trainer may go on after its end
        elif line.event == OPEN_SPANS:
            part.take_report(fields.spans or [], end_us(line))
        elif line.event == OPEN_BLOCK:
            part.block = parse_open_block(fields, end_us(line))

    def _opened(self, line: Line, fields: ControlFields, writer: _LogWriter, place: Place) -> None:
        at_us = end_us(line)
        run_id = self.run_id if self._is_member(fields, at_us) else fields.run_id
        writer.run_id, writer.dropped = run_id, 0
        writer.is_outside = fields.step_bound is False
        if run_id is not None:
            self._begun_us[run_id] = min(self._begun_us.get(run_id, at_us), at_us)
            if place.step is not None and self._is_wanted(run_id):
                self._begin_run(run_id, writer, place)
                self._launch = launch_from(fields, at_us)
        if self._counts(writer):
            writer.process.opened_us = max(writer.process.opened_us, at_us)
            self._part(line, writer, place)

    def _is_member(self, fields: ControlFields, at_us: int) -> bool:
        """Return whether a header is of another rank of the launch that is counted; then remember its run."""
        launch, part = self._launch, launch_from(fields, at_us)
        if launch is None or part is None or launch.keys != part.keys:
            return False
        running = any(not process.log_closed for process in self.processes.values())
        last_us = max((process.last_us for process in self.processes.values()), default=0)
        launch.written_us = max(at_us if running else 0, last_us)
        if part.run_id not in self.members and not launch.takes(part):
            return False
        launch.join(part)
        self.members.add(part.run_id)
        return True

    def _is_wanted(self, run_id: str) -> bool:
        """Return whether to leave the run that is counted for this one: the wanted, else the newest one."""
        if run_id == self.run_id:
            return False
        if self.run_id is None or run_id == self._wanted:
            return run_id.startswith(self._wanted)
        is_newer = self._begun_us[run_id] > self._begun_us[self.run_id]
        return is_newer and self.run_id != self._wanted and run_id.startswith(self._wanted)

    def _begin_run(self, run_id: str, writer: _LogWriter, place: Place) -> None:
        """Forget the older run; files that name none are of the first one that does."""
        if self.run_id is not None:
            self.processes, self.steps, self._forgotten, self._budget = {}, {}, set(), RequestBudget()
            self.endings, self.calls, self.gauges = Endings(), EngineCalls(), SchedulerGauges()
            writer.process, writer.part = Process(stems={place.stem}), None
            self.processes[place.role, place.worker] = writer.process
        self.run_id, self.members = run_id, {run_id}


def folder_of(step: StepKey) -> str:
    """Return the name of the folder that holds a step's files."""
    return f"{'validate' if step[1] else 'step'}_{step[0]}"


def _counts_tokens(process: Process, seen: EventCount, fields: ColumnFields) -> bool:
    """Return whether the tokens of an event count: those of the first that logs some, else of requests."""
    if process.tokens_of is None and seen.phase in _TOKEN_PHASES and response_tokens(fields):
        process.tokens_of = seen.event
    return seen.event == process.tokens_of or (process.tokens_of is None and seen.phase == "request")
