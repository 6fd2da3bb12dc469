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
from sglang_instrument.recording.keep import presence
from sglang_instrument.recording.keep.clock import HOST, Clock
from sglang_instrument.recording.keep.encoder import LineEncoder
from sglang_instrument.recording.keep.file_locks import Claims
from sglang_instrument.recording.keep.open_file import OpenFile
from sglang_instrument.recording.measure.context import count_dropped
from sglang_instrument.recording.measure.scopes import Scope, forget_scope, scopes
from sglang_instrument.recording.measure.values import make_encodable
from sglang_instrument.recording.safety.notices import notice, noticed
from sglang_instrument.regular_files import demand_regular, write_anew

_MOST_OPEN: Final = 16
# Read access, too: the file's last byte shows whether its last line is complete.
_FLAGS: Final = os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
#: What is too large for the files of all workers of a process.
_ONCE_A_PROCESS: Final = frozenset({schema.CONFIGURATION, schema.CONFIGURATION_LEFT_OUT})
#: How often a process that keeps recording rewrites its file in `processes/`.
NEWS_EVERY_SEC: Final = 10.0
QUIET_SEC: Final = 1.0  # after this long without a record it does so at once: the process may be killed next
_STEPS_KEPT: Final = 2  # a step's file stays open until this many newer steps have begun


class Files:
    """The files of this process in one run's folder.

    Args:
        folder: The run's folder; it is created when the first record is written.
        clock: The process's clock.
        run: What each file's `log_opened` says of the run: its `run_id`, and what is known of its launch.
        describe: Returns the description of this process, for `processes/<role>_<rank>.json`.
        inherited: In a forked child, the files of its parent, which the first write lets go of: closing a
            file may block.
        parents: (role, rank) of the files that belong to a forked child's parent.
    """

    def __init__(
        self,
        folder: Path,
        clock: Clock,
        run: Mapping[str, Any],
        describe: Callable[[], Mapping[str, Any]],
        parents: Collection[tuple[str, int]] = (),
        inherited: "Files | None" = None,
    ) -> None:
        self._inherited = inherited
        self._begun_sec: float = time.time() if inherited is None else inherited._begun_sec
        # A forked child that lives for less than a second, and has nothing to say, describes itself only
        # where no other child of its number has: that takes it as long as all of its records.
        self._silent_about: list[dict[str, object]] | None = None if inherited is None else noticed()
        self._folder = folder
        self._encoder = LineEncoder(clock)
        self._run = run
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
        newest = _newest_steps(known)
        for scope in known + late:
            oldest_kept = newest.get((scope.role, scope.worker))
            is_old = scope.step is not None and oldest_kept is not None and scope.step < oldest_kept
            if is_old and scope.open <= 0 and not scope.ended:
                self._close(scope)
                if scope not in late:
                    forget_scope(scope)

    def close(self) -> None:
        """End each open file with `log_closed` and close it; release the claims."""
        for scope in list(self._open):
            self.write(scope, self._encoder.control(schema.LOG_CLOSED, scope, {}), 0)
            self._close(scope)
        if self._silent_about is None or self.lost_records or self._silent_about != noticed():
            self._describe_as(self._claims.held(), log_closed=True)
        self._claims.release()

    def claimed(self) -> set[tuple[str, int]]:
        """Return (role, rank) of the files that this process writes."""
        return {(role, rank) for role, rank, _ in self._claims.held()}

    def is_described_in_turn(self) -> bool:
        """Return whether this process has described itself under a name that children use in turn."""
        return self._claims.is_shared_in_turn and bool(self.described)

    def abandon(self) -> None:
        """Close all files without writing to them, as a forked child does with its parent's files."""
        self._abandon_inherited()
        for scope in list(self._open):
            self._close(scope)
        self._claims.release()

    def _abandon_inherited(self) -> None:
        inherited, self._inherited = self._inherited, None
        if inherited is not None:
            inherited.abandon()

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
        """Write the description of this process into `processes/`, for its first (role, rank) alone.

        Those of its other workers are written when they are claimed, and when the log is closed: a process
        may have hundreds of workers.
        """
        claims = self._claims.held()
        self._describe_as(claims if log_closed else claims[:1], log_closed)

    def _describe_new(self, claims: list[tuple[str, int, str]]) -> None:
        """Write the description of this process for claims that are new; see `_silent_about`."""
        if self._silent_about is not None:
            claims = [claim for claim in claims if not self._is_described(claim[2])]
        if claims:
            self._describe_as(claims, log_closed=False)

    def _is_described(self, name: str) -> bool:
        """Return whether a process of this run has described itself under this name."""
        try:
            written_sec = os.stat(f"{self._folder}/processes/{name}.json").st_mtime  # noqa: PTH116 - faster
        except OSError:
            return False
        return written_sec >= self._begun_sec

    def _describe_as(self, claims: Iterable[tuple[str, int, str]], log_closed: bool) -> None:
        """Write the description of this process for each of these claims, made once for all of them."""
        self._silent_about = None
        facts: dict[str, Any] = {}
        first = next((name for _, _, name in self._claims.held()), None)
        for role, rank, name in claims:
            path = self._folder / "processes" / f"{name}.json"
            new = path.with_name(f".{path.name}.{os.getpid()}")
            try:
                facts = facts or {"role": "", "rank": 0, **self._described(), "log_closed": log_closed}
                facts |= {"role": role, "rank": rank}
                path.parent.mkdir(parents=True, exist_ok=True)
                once = _ONCE_A_PROCESS if name != first else frozenset()
                described = {key: value for key, value in facts.items() if key not in once}
                content = orjson.dumps(described, option=orjson.OPT_INDENT_2)
                write_anew(new, content)
                new.replace(path)
                self.described[os.fsencode(path)] = content
                if self._claims.is_shared_in_turn:  # the next child replaces what links both descriptions
                    presence.forget(self._folder)
            except Exception as error:  # a missing description must not stop the records
                notice("process file", f"{path} cannot be written: {error}")

    def _described(self) -> Any:
        workers = [name for _, _, name in self._claims.held()]
        return make_encodable({**self._describe(), "workers": workers})

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
        self._abandon_inherited()
        claimed_before = len(self._claims)
        name = self._claims.name(scope.role, scope.worker)
        folder = f"{self._folder}/{folder_of(scope)}"
        path = f"{folder}/{name}.jsonl"
        # A full FIFO would block this thread; a device would discard the lines.
        with contextlib.suppress(FileNotFoundError):
            demand_regular(path)
        try:
            descriptor = os.open(path, _FLAGS, 0o644)
        except FileNotFoundError:
            os.makedirs(folder, exist_ok=True)  # noqa: PTH103 - a forked child has no time for pathlib
            descriptor = os.open(path, _FLAGS, 0o644)
        try:
            file = OpenFile(descriptor, path)
            file.append(self._encoder.control(schema.LOG_OPENED, scope, self._header(scope, descriptor)))
        except BaseException:  # on a full disk this runs again and again: each try must close its descriptor
            os.close(descriptor)
            raise
        if len(self._claims) > claimed_before:
            self._describe_new(self._claims.held()[claimed_before:])
        return file

    def _header(self, scope: Scope, descriptor: int) -> dict[str, Any]:
        header: dict[str, Any] = {
            "log_version": schema.LOG_VERSION,
            **self._run,
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


def _newest_steps(known: Iterable[Scope]) -> dict[tuple[str, int], int]:
    """Return, by role and worker, the oldest step that stays open; only for those with enough newer steps."""
    steps: dict[tuple[str, int], set[int]] = {}
    for scope in known:
        if scope.step is not None:
            steps.setdefault((scope.role, scope.worker), set()).add(scope.step)
    return {
        worker: sorted(numbers)[-_STEPS_KEPT]
        for worker, numbers in steps.items()
        if len(numbers) >= _STEPS_KEPT
    }


def folder_of(scope: Scope) -> str:
    """Return the folder of a scope's file below the run's folder: by step, or `engine` without a step."""
    if scope.step is None:
        return "engine"
    return f"validate_{scope.step}" if scope.validate else f"step_{scope.step}"
