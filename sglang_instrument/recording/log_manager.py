"""Stand in for the class of the same name that people pasted into their rollout: one import, no other edit.

The line is the reference's: the same keys in the same order, in exactly the file that the caller names, there
at once. What differs: a timestamp has its UTC offset, no call raises, and few files stay open.
"""

import atexit
import os
import time
from _thread import RLock
from collections import OrderedDict
from typing import Any, Final, TextIO

import orjson

from sglang_instrument.recording.keep.clock import Clock
from sglang_instrument.recording.keep.line_types import LONGEST_LINE
from sglang_instrument.recording.measure.values import reduce, reduce_value, settle
from sglang_instrument.recording.safety.guard import let_through
from sglang_instrument.recording.safety.notices import notice, swallowed

_MOST_OPEN: Final = 16
_SHORT: Final = 256  # characters of what is kept of a record that is too long
_OPTIONS: Final = orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY


class SGLangLogManager:
    """Writes one JSON line a call: `log(path, "barrier", duration=0.2, workid=0, step=3)`.

    It needs no `install()`. Threads may share one; a forked child may go on using its parent's.

    Attributes:
        file_handles: The open files by path, the one used last at the end.
    """

    def __init__(self) -> None:
        self.file_handles: OrderedDict[str, TextIO] = OrderedDict()
        self._clock = Clock()
        self._lock = RLock()
        self._pid = os.getpid()
        atexit.register(self.close_all)

    def log(
        self,
        log_path: str | os.PathLike[str],
        event: str,
        duration: float | None = None,
        extra: Any = None,
        workid: int | None = None,
        step: int | None = None,
        **extra_keys: Any,
    ) -> None:
        """Append one record; the line is in the file when this returns.

        Args:
            log_path: The file; its folder is made.
            event: The event's name.
            duration: Seconds.
            extra: The event's own fields.
            workid: Rank of the worker.
            step: Training step.
            **extra_keys: More keys of the record; they come after the known ones, and win over them.
        """
        try:
            known = {"duration_sec": duration, "extra": extra, "workid": workid, "step": step}
            record = {"timestamp": "", "event": event}
            record.update((key, value) for key, value in known.items() if value is not None)
            record.update(extra_keys)
            with self._guard():
                if "timestamp" not in extra_keys:
                    record["timestamp"] = self._clock.timestamp(time.time_ns() // 1000)
                self._append(os.fspath(log_path), _encode(_with_duration_third(record)))
        except BaseException as error:  # the reference would have ended the rollout here
            swallowed("SGLangLogManager.log()", error)

    def get_handle(self, log_path: str | os.PathLike[str]) -> TextIO:
        """Return the open file of a path, line buffered, for whoever writes lines of their own.

        Where the path cannot be opened this is said once, and what is returned swallows what is written.
        """
        try:
            with self._guard():
                return self._open(os.fspath(log_path))
        except BaseException as error:
            swallowed("SGLangLogManager.get_handle()", error)
            return open(os.devnull, "a")  # noqa: PTH123 - the caller's to close, as any handle here

    def close_all(self) -> None:
        """Close the files; a later `log` opens its file again."""
        with self._guard():
            while self.file_handles:
                _close(self.file_handles.popitem()[1])

    def __reduce__(self) -> tuple[Any, ...]:
        """Travel, with the trainer's object that owns it, as a new one: files and locks stay behind."""
        return type(self), ()

    def _guard(self) -> RLock:
        """Return the lock; a forked child's own, for a thread that it does not have may hold its parent's."""
        if self._pid != os.getpid():
            self._pid, self._lock = os.getpid(), RLock()
        return self._lock

    def _open(self, path: str) -> TextIO:
        handle = self.file_handles.get(path)
        if handle is not None and not handle.closed:
            if os.fstat(handle.fileno()).st_nlink:
                self.file_handles.move_to_end(path)
                return handle
            notice("deleted", f"{path} was deleted while it was written; a new one is begun")
            _close(handle)
        self.file_handles.pop(path, None)
        while len(self.file_handles) >= _MOST_OPEN:
            _close(self.file_handles.popitem(last=False)[1])
        if folder := os.path.dirname(path):  # noqa: PTH120 - the caller's text as it is, as the reference takes it
            os.makedirs(folder, exist_ok=True)  # noqa: PTH103
        handle = open(path, "a", buffering=1, encoding="utf-8", opener=_at_once)  # noqa: SIM115
        if _is_torn(path):
            handle.write("\n")
        self.file_handles[path] = handle
        return handle

    def _append(self, path: str, line: bytes) -> None:
        """Write one whole line past the handle's buffer, which then has nothing that a fork could double."""
        descriptor = self._open(path).fileno()
        try:
            written = os.write(descriptor, line)
            while written < len(line):
                written += os.write(descriptor, line[written:])
        except OSError:  # a full disk: opened again, the file shows whether its last line is whole
            _close(self.file_handles.pop(path))
            raise


def _with_duration_third(record: dict[str, Any]) -> dict[str, Any]:
    """Return the record with its duration behind the event, wherever the caller put it."""
    if "duration_sec" not in record:
        return record
    return {"timestamp": record["timestamp"], "event": record["event"]} | {
        "duration_sec": record["duration_sec"],
        **record,
    }


def _encode(record: dict[str, Any]) -> bytes:
    """Return the record as a line: as it is where JSON allows that, else with its values reduced."""
    try:
        line = orjson.dumps(record, default=reduce_value, option=_OPTIONS)
        if len(line) <= LONGEST_LINE:
            return line
    except BaseException:  # a cycle, a lone surrogate, a huge integer
        let_through()
    reduced = {
        key: reduce(value) if key == "extra" and type(value) is dict else reduce_value(value)
        for key, value in record.items()
    }
    line = orjson.dumps(settle(reduced), default=reduce_value, option=_OPTIONS)
    if len(line) <= LONGEST_LINE:
        return line
    cut = {**_short_fields(reduced), "event": str(record["event"])[:1024], "truncated": True}
    if isinstance(reduced.get("extra"), dict):
        cut["extra"] = _short_fields(reduced["extra"])
    return orjson.dumps(settle(cut), option=_OPTIONS)


def _short_fields(fields: dict[str, Any]) -> dict[str, Any]:
    short = [entry for entry in fields.items() if len(str(entry)) <= _SHORT]
    return dict(short[:64])


def _at_once(path: str, flags: int) -> int:
    """Open a file; for a FIFO that nobody reads this raises an OSError instead of waiting for a reader."""
    descriptor = os.open(path, flags | os.O_NONBLOCK, 0o666)
    os.set_blocking(descriptor, True)
    return descriptor


def _is_torn(path: str) -> bool:
    """Return whether a file's last line was cut short, by a kill or a full disk."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            size = file.seek(0, os.SEEK_END)
            return size > 0 and os.pread(file.fileno(), 1, size - 1) != b"\n"
    except OSError:  # a pipe or a terminal, which has no end to look at
        return False


def _close(handle: TextIO) -> None:
    try:
        handle.close()
    except OSError as error:
        swallowed("closing a log", error)
