"""Own the run's files: folders, claims, opening, whole lines, closing. Only the disk thread works here."""

import contextlib
import os
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import orjson

from sglang_instrument import schema
from sglang_instrument.recording.keep.clock import HOST, Clock
from sglang_instrument.recording.keep.encoder import LineMaker
from sglang_instrument.recording.keep.file_locks import Claims
from sglang_instrument.recording.keep.open_file import OpenFile
from sglang_instrument.recording.measure.context import Scope, count_dropped, forget_scope, scopes
from sglang_instrument.recording.measure.values import settle
from sglang_instrument.recording.safety.notices import notice
from sglang_instrument.regular_files import demand_regular, write_anew

_MOST_OPEN: Final = 16
#: How often a process that goes on recording says anew what it is.
NEWS_EVERY_SEC: Final = 10.0
QUIET_SEC: Final = 1.0  # after so long without a record, it is said at once: it may be the last word
_STEPS_KEPT: Final = 2  # a step's file stays open until this many newer steps were seen


class Files:
    """The files of this process in one run's folder.

    Args:
        folder: The run's folder; it is made when the first record is written.
        clock: The process's clock.
        run_id: The run that each file's `log_opened` names.
        describe: Returns what this process is, for `processes/<role>_<rank>.json`.
        parents: (role, rank) of what a forked child must leave to its parent.
    """

    def __init__(
        self,
        folder: Path,
        clock: Clock,
        run_id: str,
        describe: Callable[[], Mapping[str, Any]],
        parents: Collection[tuple[str, int]] = (),
    ) -> None:
        self._folder = folder
        self._maker = LineMaker(clock)
        self._run_id = run_id
        self._describe = describe
        self._claims = Claims(folder, parents)
        self._open: OrderedDict[Scope, OpenFile] = OrderedDict()
        self.written_records = 0
        self.lost_records = 0
        self._said_records = self._seen_records = 0
        self._seen_at = 0.0
        self._next_news = 0.0

    def write(self, scope: Scope, lines: bytes, records: int) -> None:
        """Append whole lines to the file of `scope`; count them as lost if that is impossible.

        Args:
            scope: Whose lines they are.
            lines: All of them.
            records: How many records they are.
        """
        try:
            if not self._file(scope).append(lines):
                self._begin_anew(scope, lines)
        except Exception as error:  # an OSError as a rule; nothing is lost without being counted
            self._lose(scope, lines, records, error)
        else:
            scope.written += records
            self.written_records += records

    def close_step(self, scope: Scope) -> None:
        """Say in its file that this step of this worker is whole, with what was written and what was not."""
        if scope not in self._open and not scope.written and not scope.dropped:
            return  # nothing was ever recorded in this step
        counts = {"written": scope.written, "dropped": scope.dropped, "sampled_out": scope.sampled_out}
        self.write(scope, self._maker.control(schema.STEP_CLOSED, scope, counts), 0)

    def close_old_steps(self) -> None:
        """Close the files of steps that have ended and lie two newer steps back."""
        known = scopes()
        # Late records reopen the file of a scope that was forgotten, and is known by its file alone.
        late = [scope for scope in self._open if scope not in known]
        for scope in known + late:
            if scope.open <= 0 and not scope.ended and len(_newer_steps(scope, known)) >= _STEPS_KEPT:
                self._close(scope)
                if scope not in late:
                    forget_scope(scope)

    def close(self) -> None:
        """End each open file with `log_closed` and close it; let go of the claims."""
        for scope in list(self._open):
            self.write(scope, self._maker.control(schema.LOG_CLOSED, scope, {}), 0)
            self._close(scope)
        self.describe_process(log_closed=True)
        self._claims.release()

    def claimed(self) -> set[tuple[str, int]]:
        """Return (role, rank) of what this process writes."""
        return {(role, rank) for role, rank, _ in self._claims.held()}

    def abandon(self) -> None:
        """Close everything without writing: what a forked child does with its parent's files."""
        for scope in list(self._open):
            self._close(scope)
        self._claims.release()

    def is_news(self) -> bool:
        """Return whether to say anew what this process is and how much it recorded; asked at each tick.

        It has after its first records, after a second without any, and every ten seconds of records without
        such a pause: who is killed has no other word of its patches and of what was dropped.
        """
        now, written = time.monotonic(), self.written_records
        if written != self._seen_records:
            self._seen_records, self._seen_at = written, now
        is_quiet = now - self._seen_at >= QUIET_SEC
        if written == self._said_records or not (is_quiet or now >= self._next_news):
            return False
        self._said_records, self._next_news = written, now + NEWS_EVERY_SEC
        return True

    def describe_process(self, log_closed: bool = False) -> None:
        """Write what this process is into `processes/`, for each rank it writes for.

        Args:
            log_closed: Whether all its records are written, and no more will come.
        """
        for role, rank, name in self._claims.held():
            path = self._folder / "processes" / f"{name}.json"
            new = path.with_name(f".{path.name}.{os.getpid()}")
            try:
                facts = {"role": role, "rank": rank, **self._describe(), "log_closed": log_closed}
                path.parent.mkdir(parents=True, exist_ok=True)
                write_anew(new, orjson.dumps(settle(facts), option=orjson.OPT_INDENT_2))
                new.replace(path)
            except Exception as error:  # records do not wait for what only describes them
                notice("process file", f"{path} cannot be written: {error}")

    def _file(self, scope: Scope) -> OpenFile:
        file = self._open.get(scope)
        if file is not None:
            self._open.move_to_end(scope)
            return file
        while len(self._open) >= _MOST_OPEN:
            self._close(next(iter(self._open)))
        file = self._open[scope] = self._begin(scope)
        return file

    def _begin_anew(self, scope: Scope, lines: bytes) -> None:
        """Append lines to a new file in the place of one that was deleted."""
        notice("deleted", f"{self._open[scope].path} was deleted while it was written; a new one is begun")
        self._close(scope)
        if not self._file(scope).append(lines):
            raise FileNotFoundError("it was deleted again")

    def _begin(self, scope: Scope) -> OpenFile:
        """Open the file of `scope` and write its `log_opened`."""
        claimed_before = len(self._claims.held())
        path = self._folder / folder_of(scope) / f"{self._claims.name(scope.role, scope.worker)}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        # A FIFO would take what fits into it, and then hold up this thread; a device takes it for nobody.
        with contextlib.suppress(FileNotFoundError):
            demand_regular(path)
        # Read access, too: whether the last line is whole is seen at the file's end.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            file = OpenFile(descriptor, path)
            file.append(self._maker.control(schema.LOG_OPENED, scope, self._header(scope, descriptor)))
        except BaseException:  # a full disk is tried again and again: each try must give its descriptor back
            os.close(descriptor)
            raise
        if len(self._claims.held()) > claimed_before:
            self.describe_process()
        return file

    def _header(self, scope: Scope, descriptor: int) -> dict[str, Any]:
        header: dict[str, Any] = {
            "log_version": schema.LOG_VERSION,
            "run_id": self._run_id,
            "pid": os.getpid(),
            "host": HOST,
            **Clock.pair(),
        }
        if scope.step == 0:  # the first step of some trainers; of others, what lies outside of any step
            header["step_bound"] = scope.bound
        return {**header, "reopened": True} if os.fstat(descriptor).st_size else header

    def _lose(self, scope: Scope, lines: bytes, records: int, error: Exception) -> None:
        """Count what was not written; a disk that fills up still took the first of the lines."""
        file = self._open.get(scope)
        written = memoryview(lines)[: file.done].tobytes().count(b"\n") if file is not None and records else 0
        scope.written += written
        count_dropped(scope, records - written)
        self.written_records += written
        self.lost_records += records - written
        notice(
            f"write: {getattr(error, 'errno', type(error).__name__)}",
            f"records of {folder_of(scope)} cannot be written below {self._folder} ({error}); "
            "they are dropped and counted, training goes on",
        )
        self._close(scope)

    def _close(self, scope: Scope) -> None:
        file = self._open.pop(scope, None)
        if file is not None and file.is_ours():
            with contextlib.suppress(OSError):
                os.close(file.descriptor)


def _newer_steps(scope: Scope, known: Iterable[Scope]) -> set[int]:
    """Return the steps of the same worker that come after this one."""
    if scope.step is None:
        return set()
    return {
        other.step
        for other in known
        if other.step is not None
        and other.step > scope.step
        and (other.role, other.worker) == (scope.role, scope.worker)
    }


def folder_of(scope: Scope) -> str:
    """Return the folder of a scope's file below the run's: by step, or `engine` where no step is known."""
    if scope.step is None:
        return "engine"
    return f"validate_{scope.step}" if scope.validate else f"step_{scope.step}"
