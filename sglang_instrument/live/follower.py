"""Follow a run: read what its processes add, keep a small state, and publish a snapshot of it."""

import math
import os
import threading
import time
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

from sglang_instrument.analysis.reading.folders import is_part
from sglang_instrument.errors import LogError
from sglang_instrument.live.busy import ThreadWork
from sglang_instrument.live.followed_run import FollowedRun, wall_us
from sglang_instrument.live.outside.runs_beside import RunBeside, last_written, runs_beside
from sglang_instrument.live.state import Problem, Snapshot
from sglang_instrument.plain_text import plain

_ROUND_SEC: Final = 0.5
_PAUSES: Final = 4  # times what a round costs
_LONGEST_SEC: Final = 1.5
_FIND_EVERY_SEC: Final = 5.0  # whether a newer run began beside this one
_SECOND_LOOK_SEC: Final = 1.0  # at silent processes, by the only look at a run
_HANGS_SEC: Final = 5.0  # a disk that takes longer for one file hangs


class Follower:
    """Follows the run in a folder, or the newest run in a folder of runs, in a thread of its own.

    Args:
        logs: The run's folder, a folder of runs, or one that does not exist yet.
        run_id: Follow this run only, by its id or the begin of it; None: the newest one in the folder.
        with_now: Whether snapshots have the step in progress; without it, only finished ones.
        with_done: Whether to analyse finished steps.
        with_stacks: Whether to ask `py-spy`, once each, where silent processes stand.
        with_runs: Whether snapshots list the runs of the folder.
    """

    def __init__(
        self,
        logs: Path,
        run_id: str | None = None,
        with_now: bool = True,
        with_done: bool = True,
        with_stacks: bool = False,
        with_runs: bool = False,
    ) -> None:
        self._logs = logs
        self.run_id = run_id
        self._open = partial(
            FollowedRun, run_id=run_id, with_now=with_now, with_done=with_done, with_stacks=with_stacks
        )
        self._run: FollowedRun | None = None
        self._next_find = 0.0
        self._with_runs = with_runs
        self._runs: tuple[RunBeside, ...] = ()
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None
        self._published = Snapshot(str(logs), None, wall_us(), waiting="starting")
        self._published_at = time.monotonic()
        self._round: ThreadWork | None = None

    def start(self) -> None:
        """Begin to follow."""
        self._thread = threading.Thread(target=self._follow, name="follower", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End; a thread that hangs at a disk is left alone."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join(1.0)
        if self._run is not None:
            self._run.close()

    def snapshot(self) -> Snapshot:
        """Return the newest snapshot; it says so if reading does not return."""
        snapshot, stuck = self._published, self._stuck()
        if stuck is None:
            return snapshot
        sentence, since = stuck
        now = time.monotonic()
        problem = Problem("follower", wall_us() - round((now - since) * 1e6), None, None, plain(sentence))
        behind_sec = snapshot.behind_sec + now - self._published_at
        return replace(snapshot, problems=(*snapshot.problems, problem), behind_sec=behind_sec)

    def _stuck(self) -> tuple[str, float] | None:
        """Return what is said of a disk that hangs, and since when; None if none does."""
        reading, run = self._round, self._run
        if reading is None:
            return None
        what, since = (run.tail.doing if run is not None else None) or (str(self._logs), reading.begun)
        waited_sec = time.monotonic() - since
        if waited_sec < _HANGS_SEC or waited_sec - reading.busy_sec() < _HANGS_SEC:
            return None
        if self._round is not reading:  # this round has ended meanwhile
            return None
        return f"reading {what} has not returned for {_HANGS_SEC:.0f} s: its disk hangs", since

    def finish(self, most_sec: float) -> Snapshot:
        """End the thread and take a last look, each for at most `most_sec`; return what is known then."""
        self._ending.set()
        if self._thread is not None:
            self._thread.join(most_sec)
            if self._thread.is_alive():
                return self.snapshot()
        return self.catch_up(most_sec)

    def catch_up(self, most_sec: float = math.inf) -> Snapshot:
        """Read everything that is there, and return what is known then, or after some seconds.

        Raises:
            LogError: A disk hangs.
        """
        failures: list[Exception] = []
        ends = time.monotonic() + most_sec
        reader = threading.Thread(target=self._catch_up, args=(failures,), daemon=True)
        reader.start()
        while reader.is_alive() and time.monotonic() < ends:
            reader.join(0.1)
            if reader.is_alive() and (stuck := self._stuck()) is not None:
                raise LogError(stuck[0])
        if failures:
            raise failures[0]
        return self._published

    def _catch_up(self, failures: list[Exception]) -> None:
        try:
            self._next_find = 0.0
            if self._run is not None:
                self._run.tail.hurry()
            while self.round():
                pass
            if self._run is not None:
                self._run.wait_for_done()
                if self._run.look_outside(time.monotonic()):
                    time.sleep(_SECOND_LOOK_SEC)
                    self._run.look_outside(time.monotonic())
            self.round()
        except Exception as error:  # for the caller
            failures.append(error)

    def round(self) -> bool:
        """Read once what was added, and publish a snapshot; return whether there is more to read."""
        self._round = ThreadWork()
        try:
            return self._read(self._round.begun)
        finally:
            self._round = None

    def _read(self, now: float) -> bool:
        if now >= self._next_find:
            self._next_find = now + _FIND_EVERY_SEC
            self._find(now)
            if self._with_runs:
                self._runs = runs_beside(self._logs, self._run.folder if self._run is not None else None)
        try:
            if self._run is None:
                self._publish(Snapshot(str(self._logs), None, wall_us(), waiting=_why_not(self._logs)))
                self._next_find = 0.0
                return False
            more = self._run.read(now)
            if not more or now - self._published_at > _ROUND_SEC:
                self._publish(self._run.snapshot(time.monotonic()))
            return more
        except OSError as error:  # the folder vanished, or cannot be read
            self._leave(f"{error.filename or self._logs}: {error.strerror or error}")
            return False

    def _follow(self) -> None:
        while not self._ending.is_set():
            begun, cpu_begun = time.monotonic(), time.thread_time()
            try:
                more = self.round()
            except Exception as error:  # one bad round must not end the others
                self._leave(f"the follower failed: {error!r}", is_problem=True)
                more = False
            if not more:  # a round of a thousand workers costs more, and then comes less often
                left = _ROUND_SEC - (time.monotonic() - begun)
                rest = min(_LONGEST_SEC, _PAUSES * (time.thread_time() - cpu_begun))
                self._ending.wait(max(left, rest))

    def _find(self, now: float) -> None:
        """Follow the newest run, unless the one that is followed still logs."""
        try:
            folder = newest_run(self._logs)
        except OSError:  # it vanishes just now
            return
        if self._run is not None and (
            folder is None or folder == self._run.folder or not self._run.is_quiet(now)
        ):
            return
        if folder is not None:
            if self._run is not None:
                self._run.close()
            self._run = self._open(folder)

    def _leave(self, why: str, is_problem: bool = False) -> None:
        if self._run is not None:
            self._run.close()
            self._run = None
        self._next_find = 0.0
        problem = Problem("follower", wall_us(), None, None, plain(why))
        problems = (problem,) if is_problem else ()
        self._publish(Snapshot(str(self._logs), None, wall_us(), problems=problems, waiting=why))

    def _publish(self, snapshot: Snapshot) -> None:
        self._published, self._published_at = replace(snapshot, runs=self._runs), time.monotonic()


def newest_run(logs: Path) -> Path | None:
    """Return the run's folder, or of a folder of runs the one that changed last; None if there is none yet.

    Raises:
        OSError: The folder vanishes while it is looked at.
    """
    if not logs.is_dir():
        return None
    with os.scandir(logs) as entries:
        children = [Path(child) for child in entries]
    children = [child for child in children if child.is_dir()]  # a link to itself is none, and no error
    if any(is_part(child.name) for child in children):
        return logs
    runs = {child: _changed(child) for child in children}
    return max((run for run, changed in runs.items() if changed), key=lambda run: runs[run], default=None)


def _changed(run: Path) -> float:
    """Return when a file was added to a run, about; 0 if the folder is none."""
    try:
        return last_written(run, list(filter(is_part, os.listdir(run))))  # noqa: PTH208 - only the names
    except OSError:
        return 0.0


def _why_not(logs: Path) -> str:
    if not logs.exists():
        return f"{logs}: no such folder yet"
    if not logs.is_dir():
        return f"{logs}: not a folder"
    return f"{logs}: no run in it yet"
