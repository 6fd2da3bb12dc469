"""Keep what one log file says of itself: its control records, and what in it could not be read."""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

from sglang_instrument.analysis.health import Health
from sglang_instrument.analysis.lines import Extra
from sglang_instrument.analysis.places import Place, place_at
from sglang_instrument.schema import LOG_CLOSED, LOG_OPENED, OPEN_SPANS, STEP_CLOSED

#: The event of a held loop is no control record, but is kept like one: its stack is no column.
LOOP_BLOCK: Final = "event_loop_block"


class Control(msgspec.Struct):
    """A control record, or a held event loop, with where it stood."""

    event: str
    run_id: str | None
    time_us: int
    extra: Extra
    duration_sec: float | None = None


class File(msgspec.Struct):
    """One log file.

    Attributes:
        path: The path below the run's folder, with slashes.
        size: Its bytes, packed or not, when it was read.
        mtime_ns: When it had been changed.
        runs: Ids of the runs that wrote records to it, in order; None stands for records before any header.
        records: How many records each of them wrote.
        controls: Its control records.
        headerless: Whether it has no `log_opened`.
        torn, foreign, local_times: As in `Health`.
        unreadable: Why it, or its rest, could not be read.
    """

    path: str
    size: int
    mtime_ns: int
    runs: list[str | None] = []
    records: list[int] = []
    controls: list[Control] = []
    headerless: bool = False
    torn: int = 0
    foreign: int = 0
    local_times: int = 0
    unreadable: str | None = None

    @property
    def place(self) -> Place | None:
        """What its name says that it belongs to."""
        return place_at(self.path)

    @property
    def folder(self) -> str:
        """The step's folder."""
        return self.path.partition("/")[0]


def newest_runs(files: Sequence[File]) -> dict[str, str | None]:
    """Return the run id that counts for each folder: the one whose header is the newest there."""
    newest: dict[str, tuple[int, str | None]] = {}
    for file in files:
        for control in file.controls:
            if control.event == LOG_OPENED:
                before = newest.get(file.folder)
                if before is None or control.time_us >= before[0]:
                    newest[file.folder] = (control.time_us, control.run_id)
    return {folder: run_id for folder, (_, run_id) in newest.items()}


def counting(files: Sequence[File]) -> Callable[[File, str | None], bool]:
    """Return what says whether records of a file and run id count: those of the newest run, or of none."""
    newest = newest_runs(files)
    return lambda file, run_id: run_id is None or run_id == newest.get(file.folder)


def controls_of(files: Sequence[File], event: str) -> list[tuple[File, Control]]:
    """Return the control records of one kind that count, in the order of their files."""
    counts = counting(files)
    return [
        (file, control)
        for file in files
        for control in file.controls
        if control.event == event and counts(file, control.run_id)
    ]


def never_ended(files: Sequence[File]) -> list[tuple[File, Control]]:
    """Return the last report of open spans of each file whose step, or whose log, did not end."""
    ended = {file.path for event in (STEP_CLOSED, LOG_CLOSED) for file, _ in controls_of(files, event)}
    reports = {file.path: (file, control) for file, control in controls_of(files, OPEN_SPANS)}
    return [report for path, report in reports.items() if path not in ended]


def health_of(files: Sequence[File]) -> Health:
    """Sum up what the files of a run say of themselves."""
    health = Health(ignored=[file.path for file in files if file.place is None])
    counts = counting(files)
    for file in files:
        if file.place is None:
            continue
        health.files += 1
        health.torn += file.torn
        health.foreign += file.foreign
        health.local_times += file.local_times
        health.headerless += file.headerless
        if file.unreadable is not None:
            health.unreadable[file.path] = file.unreadable
        for run_id, records in zip(file.runs, file.records, strict=True):
            if counts(file, run_id):
                health.records += records
            elif records:
                health.older[str(run_id)] = health.older.get(str(run_id), 0) + records
    health.runs = _used_runs(files)
    health.open_spans = len(controls_of(files, OPEN_SPANS))
    health.dropped, health.sampled_out = _left_out(files)
    health.unclosed = _unclosed(files)
    return health


def _left_out(files: Sequence[File]) -> tuple[int, int]:
    """Return the records that the writers say they dropped, and sampled out.

    A step of an asynchronous trainer ends, goes on and ends again. Each time its file says the counts so far,
    so the last ones hold; where they fall, the writer had forgotten the step, and began to count anew.
    """
    dropped = sampled_out = 0
    last: dict[tuple[str, str | None], tuple[int, int]] = {}
    for file, closed in controls_of(files, STEP_CLOSED):
        key = file.path, closed.run_id
        now = closed.extra.dropped or 0, closed.extra.sampled_out or 0
        before = last.get(key, (0, 0))
        if now[0] < before[0] or now[1] < before[1]:
            before = 0, 0
        dropped, sampled_out = dropped + now[0] - before[0], sampled_out + now[1] - before[1]
        last[key] = now
    return dropped, sampled_out


def _used_runs(files: Sequence[File]) -> list[str]:
    """Return the run ids that count for some folder, oldest first."""
    begun: dict[str, int] = {}
    for file in files:
        for control in file.controls:
            if control.event == LOG_OPENED and control.run_id is not None:
                begun[control.run_id] = min(control.time_us, begun.get(control.run_id, control.time_us))
    used = set(newest_runs(files).values())
    return sorted((run for run in begun if run in used), key=begun.__getitem__)


def _unclosed(files: Sequence[File]) -> list[tuple[int, bool, int]]:
    closed = {file.path for file, _ in controls_of(files, STEP_CLOSED)}
    opened = dict.fromkeys(file.path for file, _ in controls_of(files, LOG_OPENED))
    places = (place_at(path) for path in opened if path not in closed)
    return [
        (place.step, place.validate, place.worker)
        for place in places
        if place is not None and place.role == "worker" and place.step is not None
    ]
