"""Join the runs of one launch: ranks that a launcher started may each have made a run id of their own.

With a fixed master, all that ranks on two nodes have in common is the master's address, and the next launch
may have the same one. So runs are one launch if their key is the same, their ranks differ, and they have the
same launcher or write at the same time. The same rank again is a restart.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from sglang_instrument.schema import LOG_CLOSED, LOG_OPENED

if TYPE_CHECKING:
    from sglang_instrument.analysis.reading.files import File
    from sglang_instrument.analysis.reading.records.fields import ControlFields


@dataclass
class Launch:
    """What the files say of one run, or of the runs of one launch.

    Attributes:
        run_id: Its id; of several runs, that of the first.
        begin_us, end_us: When its first and its last control record was written, in Unix microseconds.
        written_us: When one of its files was last written to; 0 if it closed its log, as a copy may be newer.
        keys, launchers, ranks: As its processes recorded them; empty without a launcher.
        runs: The ids of its runs.
        logs_steps: Whether it wrote to the folder of a step; servers that are started by hand do not.
    """

    run_id: str
    begin_us: int
    end_us: int
    written_us: int = 0
    keys: set[str] = field(default_factory=set)
    launchers: set[str] = field(default_factory=set)
    ranks: set[str] = field(default_factory=set)
    runs: list[str] = field(default_factory=list)
    logs_steps: bool = False

    def overlaps(self, other: Launch) -> bool:
        """Return whether both were writing at the same time."""
        return self.begin_us <= other.end_us and other.begin_us <= self.end_us

    def takes(self, run: Launch) -> bool:
        """Return whether a run is a part of this launch."""
        if not (self.ranks and run.ranks and self.ranks.isdisjoint(run.ranks)):
            return False
        is_same = not self.launchers.isdisjoint(run.launchers)
        return is_same or run.begin_us <= max(self.end_us, self.written_us)  # runs come in order

    def join(self, run: Launch) -> None:
        """Add what is known of a run of this launch."""
        self.begin_us = min(self.begin_us, run.begin_us)
        self.end_us = max(self.end_us, run.end_us)
        self.written_us = max(self.written_us, run.written_us)
        self.launchers |= run.launchers
        self.ranks |= run.ranks
        self.runs += run.runs
        self.logs_steps |= run.logs_steps


def launches_in(files: Iterable[File]) -> list[Launch]:
    """Return the launches that wrote these files, the oldest first."""
    return joined(_runs_in(files))


def joined(runs: Iterable[Launch]) -> list[Launch]:
    """Return launches made of these runs, the oldest first."""
    launches: list[Launch] = []
    newest: dict[Any, Launch] = {}  # by key
    for run in sorted(runs, key=lambda run: (run.begin_us, run.run_id)):
        keys = tuple(sorted(run.keys))
        before = newest.get(keys) if keys else None
        if before is not None and before.takes(run):
            before.join(run)
        else:
            launches.append(run)
            newest[keys] = run
    return launches


def launch_from(header: ControlFields, at_us: int) -> Launch | None:
    """Return what one header says of its launch; None if it names none."""
    if header.run_id is None or header.launch is None:
        return None
    launch = Launch(header.run_id, at_us, at_us, runs=[header.run_id])
    launch.keys, launch.launchers = {str(header.launch)}, {str(header.launcher)}
    launch.ranks = {str(header.rank)}
    return launch


def at_once(launches: Sequence[Launch]) -> list[str]:
    """Return the ids of launches that wrote steps to one folder at the same time, which none should."""
    trainers = [launch for launch in launches if launch.logs_steps]
    return [
        launch.run_id
        for launch in trainers
        if any(other is not launch and other.overlaps(launch) for other in trainers)
    ]


def _runs_in(files: Iterable[File]) -> Iterable[Launch]:
    runs: dict[str, Launch] = {}
    closed: set[str] = set()
    for file in files:
        last = None
        for control in file.controls:
            if control.run_id is None:
                continue
            run = runs.get(control.run_id)
            if run is None:
                run = runs[control.run_id] = Launch(
                    control.run_id, control.time_us, control.time_us, runs=[control.run_id]
                )
            run.begin_us = min(run.begin_us, control.time_us)
            run.end_us = max(run.end_us, control.time_us)
            last = control
            if control.event == LOG_CLOSED:
                closed.add(control.run_id)
            if control.event == LOG_OPENED and control.extra.launch is not None:
                run.keys.add(str(control.extra.launch))
                run.launchers.add(str(control.extra.launcher))
                run.ranks.add(str(control.extra.rank))
            if file.place is not None and file.place.step is not None:
                run.logs_steps = True
        if last is not None and last.run_id is not None:
            run = runs[last.run_id]
            run.written_us = max(run.written_us, file.mtime_ns // 1000)
    for run_id in closed:
        runs[run_id].written_us = 0
    return runs.values()
