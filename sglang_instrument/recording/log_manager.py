"""Replace the class of the same name that users pasted into their rollout: one import, no other edit.

Each line equals that of the reference class: the same keys in the same order, in the file that the caller
names, written at once. Three differences: timestamps have a UTC offset, no call raises, few files stay open.
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
from sglang_instrument.recording.measure.values import make_encodable, reduce, reduce_value
from sglang_instrument.recording.safety.guard import reraise_if_programs_own
from sglang_instrument.recording.safety.notices import log_swallowed, notice

_MOST_OPEN: Final = 16
_SHORT: Final = 256  # characters; longer fields of a record that is too long are dropped
_OPTIONS: Final = orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS | orjson.OPT_SERIALIZE_NUMPY


class SGLangLogManager:
    """Writes one JSON line per call: `log(path, "barrier", duration=0.2, workid=0, step=3)`.

    It needs no `install()`. Threads may share one object; a forked child may use its parent's.

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
            log_path: The file; a missing folder is created.
            event: The event's name.
            duration: Seconds.
            extra: The event's own fields.
            workid: Rank of the worker.
            step: Training step.
            **extra_keys: More keys of the record; they come after the known ones and override them.
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
            log_swallowed("SGLangLogManager.log()", error)

    def get_handle(self, log_path: str | os.PathLike[str]) -> TextIO:
        """Return the open file of a path, line buffered, for callers that write their own lines.

        If the path cannot be opened, log one warning and return a file that discards everything.
        """
        try:
            with self._guard():
                return self._open(os.fspath(log_path))
        except BaseException as error:
            log_swallowed("SGLangLogManager.get_handle()", error)
            return open(os.devnull, "a")  # noqa: PTH123 - the caller closes it, as any handle here

    def close_all(self) -> None:
        """Close the files; a later `log` opens its file again."""
        with self._guard():
            while self.file_handles:
                _close(self.file_handles.popitem()[1])

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as a new object, without files and locks: trainer objects that hold one stay picklable."""
        return type(self), ()

    def _guard(self) -> RLock:
        """Return the lock. A forked child makes a new one: a thread of the parent may hold the old one."""
        if self._pid != os.getpid():
            self._pid, self._lock = os.getpid(), RLock()
        return self._lock

    def _open(self, path: str) -> TextIO:
        handle = self.file_handles.get(path)
        if handle is not None and not handle.closed:
            if os.fstat(handle.fileno()).st_nlink:
                self.file_handles.move_to_end(path)
                return handle
            notice("deleted", f"{path} was deleted while it was open; a new file is created")
            _close(handle)
        self.file_handles.pop(path, None)
        while len(self.file_handles) >= _MOST_OPEN:
            _close(self.file_handles.popitem(last=False)[1])
        if folder := os.path.dirname(path):  # noqa: PTH120 - the caller's string unchanged, as in the reference
            os.makedirs(folder, exist_ok=True)  # noqa: PTH103
        handle = open(path, "a", buffering=1, encoding="utf-8", opener=_at_once)  # noqa: SIM115
        if _is_torn(path):
            handle.write("\n")
        self.file_handles[path] = handle
        return handle

    def _append(self, path: str, line: bytes) -> None:
        """Write one whole line past the handle's buffer: a fork would write a buffered line twice."""
        descriptor = self._open(path).fileno()
        try:
            written = os.write(descriptor, line)
            while written < len(line):
                written += os.write(descriptor, line[written:])
        except OSError:  # a full disk: the next _open() checks whether the last line is complete
            _close(self.file_handles.pop(path))
            raise


def _with_duration_third(record: dict[str, Any]) -> dict[str, Any]:
    """Return the record with its duration as the third key, wherever the caller put it."""
    if "duration_sec" not in record:
        return record
    return {"timestamp": record["timestamp"], "event": record["event"]} | {
        "duration_sec": record["duration_sec"],
        **record,
    }


def _encode(record: dict[str, Any]) -> bytes:
    """Return the record as a line; reduce its values if JSON cannot encode them, or the line is too long."""
    try:
        line = orjson.dumps(record, default=reduce_value, option=_OPTIONS)
        if len(line) <= LONGEST_LINE:
            return line
    except BaseException as error:  # a cycle, a lone surrogate, a huge integer
        reraise_if_programs_own()
        if error.__cause__ is not None:  # an exception of the program in `default`, which orjson replaces
            raise error.__cause__ from None
    reduced = {
        key: reduce(value) if key == "extra" and type(value) is dict else reduce_value(value)
        for key, value in record.items()
    }
    line = orjson.dumps(make_encodable(reduced), default=reduce_value, option=_OPTIONS)
    if len(line) <= LONGEST_LINE:
        return line
    cut = {**_short_fields(reduced), "event": str(record["event"])[:1024], "truncated": True}
    if isinstance(reduced.get("extra"), dict):
        cut["extra"] = _short_fields(reduced["extra"])
    return orjson.dumps(make_encodable(cut), option=_OPTIONS)


def _short_fields(fields: dict[str, Any]) -> dict[str, Any]:
    short = [entry for entry in fields.items() if len(str(entry)) <= _SHORT]
    return dict(short[:64])


def _at_once(path: str, flags: int) -> int:
    """Open a file; a FIFO without a reader raises an OSError instead of waiting for one."""
    descriptor = os.open(path, flags | os.O_NONBLOCK, 0o666)
    os.set_blocking(descriptor, True)
    return descriptor


def _is_torn(path: str) -> bool:
    """Return whether a file's last line is incomplete, after a kill or on a full disk."""
    try:
        with open(path, "rb") as file:  # noqa: PTH123
            size = file.seek(0, os.SEEK_END)
            return size > 0 and os.pread(file.fileno(), 1, size - 1) != b"\n"
    except OSError:  # a pipe or a terminal cannot seek
        return False


def _close(handle: TextIO) -> None:
    try:
        handle.close()
    except OSError as error:
        log_swallowed("closing a log", error)
