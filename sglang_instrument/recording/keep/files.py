"""Own the run's files: folders, claims, opening, whole lines, closing. Used by the disk's thread alone."""

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
from sglang_instrument.recording.keep.encoder import LineEncoder
from sglang_instrument.recording.keep.file_locks import Claims
from sglang_instrument.recording.keep.open_file import OpenFile
from sglang_instrument.recording.measure.context import Scope, count_dropped, forget_scope, scopes
from sglang_instrument.recording.measure.values import make_encodable
from sglang_instrument.recording.safety.notices import notice
from sglang_instrument.regular_files import demand_regular, write_anew

_MOST_OPEN: Final = 16
#: How often a process that keeps recording rewrites its file in `processes/`.
NEWS_EVERY_SEC: Final = 10.0
QUIET_SEC: Final = 1.0  # after this long without a record it does so at once: the process may be killed next
_STEPS_KEPT: Final = 2  # a step's file stays open until this many newer steps have begun


class Files:
    """The files of this process in one run's folder.

    Args:
        folder: The run's folder; it is created when the first record is written.
        clock: The process's clock.
        run_id: The run that each file's `log_opened` names.
        describe: Returns the description of this process, for `processes/<role>_<rank>.json`.
        parents: (role, rank) of the files that belong to a forked child's parent.
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
        self._encoder = LineEncoder(clock)
        self._run_id = run_id
        self._describe = describe
        self._claims = Claims(folder, parents)
        self._open: OrderedDict[Scope, OpenFile] = OrderedDict()
        self.written_records = 0
        self.lost_records = 0
        self.described: dict[bytes, bytes] = {}  # the files in `processes/`, as last written, by path
        self._said_records = self._seen_records = 0
        self._seen_at = 0.0
        self._next_news = 0.0

    def write(self, scope: Scope, lines: bytes, records: int) -> None:
        """Append whole lines to the file of `scope`; count them as lost if that is impossible.

        Args:
            scope: The scope of the lines.
            lines: The lines, each with its newline.
            records: The number of records among them.
        """
        try:
            if not self._file(scope).append(lines):
                self._begin_anew(scope, lines)
        except Exception as error:  # usually an OSError; every lost record is counted
            self._lose(scope, lines, records, error)
        else:
            scope.written += records
            self.written_records += records

    def close_step(self, scope: Scope) -> None:
        """Write to its file that a worker's step is complete, with the counts of its records."""
        if scope not in self._open and not scope.written and not scope.dropped:
            return  # nothing was ever recorded in this step
        counts = {"written": scope.written, "dropped": scope.dropped, "sampled_out": scope.sampled_out}
        self.write(scope, self._encoder.control(schema.STEP_CLOSED, scope, counts), 0)

    def close_old_steps(self) -> None:
        """Close the files of ended steps after which two newer steps have begun."""
        known = scopes()
        # Late records reopen the file of a scope that was forgotten; only its open file still refers to it.
        late = [scope for scope in self._open if scope not in known]
        for scope in known + late:
            if scope.open <= 0 and not scope.ended and len(_newer_steps(scope, known)) >= _STEPS_KEPT:
                self._close(scope)
                if scope not in late:
                    forget_scope(scope)

    def close(self) -> None:
        """End each open file with `log_closed` and close it; release the claims."""
        for scope in list(self._open):
            self.write(scope, self._encoder.control(schema.LOG_CLOSED, scope, {}), 0)
            self._close(scope)
        self.describe_process(log_closed=True)
        self._claims.release()

    def claimed(self) -> set[tuple[str, int]]:
        """Return (role, rank) of the files that this process writes."""
        return {(role, rank) for role, rank, _ in self._claims.held()}

    def abandon(self) -> None:
        """Close all files without writing to them, as a forked child does with its parent's files."""
        for scope in list(self._open):
            self._close(scope)
        self._claims.release()

    def is_news(self) -> bool:
        """Return whether to rewrite the file in `processes/`; called at each tick.

        True after the first records, after a second without records, and every ten seconds of records without
        such a pause: a killed process leaves no other record of its patches and its dropped records.
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
        """Write the description of this process into `processes/`, for each claimed (role, rank).

        Args:
            log_closed: Whether all records are written, and no more will come.
        """
        for role, rank, name in self._claims.held():
            path = self._folder / "processes" / f"{name}.json"
            new = path.with_name(f".{path.name}.{os.getpid()}")
            try:
                facts = {"role": role, "rank": rank, **self._describe(), "log_closed": log_closed}
                path.parent.mkdir(parents=True, exist_ok=True)
                content = orjson.dumps(make_encodable(facts), option=orjson.OPT_INDENT_2)
                write_anew(new, content)
                new.replace(path)
                self.described[os.fsencode(path)] = content
            except Exception as error:  # a missing description must not stop the records
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
        """Append lines to a new file that replaces a deleted one."""
        notice("deleted", f"{self._open[scope].path} was deleted while it was open; a new file is created")
        self._close(scope)
        if not self._file(scope).append(lines):
            raise FileNotFoundError("it was deleted again")

    def _begin(self, scope: Scope) -> OpenFile:
        """Open the file of `scope` and write its `log_opened`."""
        claimed_before = len(self._claims.held())
        path = self._folder / folder_of(scope) / f"{self._claims.name(scope.role, scope.worker)}.jsonl"
        path.parent.mkdir(parents=True, exist_ok=True)
        # A full FIFO would block this thread; a device would discard the lines.
        with contextlib.suppress(FileNotFoundError):
            demand_regular(path)
        # Read access, too: the file's last byte shows whether its last line is complete.
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        try:
            file = OpenFile(descriptor, path)
            file.append(self._encoder.control(schema.LOG_OPENED, scope, self._header(scope, descriptor)))
        except BaseException:  # on a full disk this runs again and again: each try must close its descriptor
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
        if scope.step == 0:  # either a trainer's first step, or the records outside of any step
            header["step_bound"] = scope.bound
        return {**header, "reopened": True} if os.fstat(descriptor).st_size else header

    def _lose(self, scope: Scope, lines: bytes, records: int, error: Exception) -> None:
        """Count the records that were not written; a disk that fills up has taken the first lines."""
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
    """Return the folder of a scope's file below the run's folder: by step, or `engine` without a step."""
    if scope.step is None:
        return "engine"
    return f"validate_{scope.step}" if scope.validate else f"step_{scope.step}"
