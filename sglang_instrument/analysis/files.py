"""Keep what one log file says of itself: its control records, and what in it could not be read."""

from collections.abc import Callable, Sequence
from typing import Final

import msgspec

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


def ended(files: Sequence[File]) -> set[str]:
    """Return the paths of files whose step was closed, or whose log was after it was opened last."""
    counts, over = counting(files), set()
    for file in files:
        said = [control.event for control in file.controls if counts(file, control.run_id)]
        last = [event for event in said if event in (LOG_OPENED, LOG_CLOSED)][-1:]
        if STEP_CLOSED in said or last == [LOG_CLOSED]:
            over.add(file.path)
    return over


def never_ended(files: Sequence[File]) -> list[tuple[File, Control]]:
    """Return the last report of open spans of each file whose step, or whose log, did not end."""
    over = ended(files)
    reports = {file.path: (file, control) for file, control in controls_of(files, OPEN_SPANS)}
    return [report for path, report in reports.items() if path not in over]
