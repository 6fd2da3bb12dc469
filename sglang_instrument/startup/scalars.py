"""Know the numbers of finished steps in training, and hand them to the trainer's tracker.

`python -m sglang_instrument.live LOGS`, outside of training, computes them and appends a line a step to a
file. Here a thread reads that file, and training looks them up in memory: it never waits for a disk or the
follower.
"""

import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, TypeVar

import orjson

from sglang_instrument.plain_text import plain
from sglang_instrument.recording.safety.notices import log_swallowed, notice
from sglang_instrument.recording.safety.unpatched import Flag, RLock, Thread
from sglang_instrument.regular_files import open_regular
from sglang_instrument.startup.late_numbers import PREFIX, TrackerRows, log_late, split, with_own_step

_LOOK_SEC: Final = 0.5
_MOST_STEPS: Final = 256  # kept in memory; a tracker asks for the last ones
_PIECE_BYTES: Final = 256 * 1024
_SILENT_STEPS: Final = 4  # this many steps without any numbers, and
_SILENT_SEC: Final = 60.0  # so many seconds, are no delay any more
_LEFT_OUT: Final = (
    "the numbers of a step were known after the trainer had logged a later one, and no tracker here takes "
    "earlier steps: they are left out of the tracker, and status() counts such steps"
)
_LATE_AT_ONCE: Final = 2  # late steps in one call of the trainer: a tracker may ask a server for each

Key = TypeVar("Key")
Value = TypeVar("Value")


class Scalars:
    """The numbers of the steps of a run, as the follower told them.

    Args:
        folder: The run's folder.
        run_id: Id of this launch; numbers of others are left out.
    """

    def __init__(self, folder: Path, run_id: str) -> None:
        self._folder = folder
        self._run_id = run_id
        self._known: dict[int, dict[str, float]] = {}
        self._given: dict[int, None] = {}
        self._late: dict[int, None] = {}
        self._rows = TrackerRows()
        self._left_out = 0
        self._offset = 0
        self._lock = RLock()  # of what was given: threads may log at once
        self._begun: float | None = None
        self._thread: Thread | None = None
        self._stopped = Flag()

    def start(self) -> None:
        """Read what the follower tells, from now on."""
        if self._thread is None:
            self._thread = Thread(self._run, "sglang_instrument-scalars")
            try:
                self._thread.start()
            except (RuntimeError, MemoryError) as error:  # no more threads, or the interpreter is going
                log_swallowed("reading the numbers of steps", error)

    def stop(self) -> None:
        """Let the thread end."""
        self._stopped.set()
        left = self._left_out + self._rows.left(self._known.get)
        if left:
            steps = "1 step is" if left == 1 else f"{left:,} steps are"
            path = f"{self._folder}/live/scalars.jsonl"
            notice("scalars: left", f"the numbers of {steps} in {path} alone: too late for the tracker")

    def join(self, wait_sec: float) -> None:
        """Wait for the thread's end, at most `wait_sec`: it may hang on a disk."""
        if self._thread is not None and self._thread.is_alive():
            self._thread.join(wait_sec)

    def of(self, step: int) -> dict[str, float]:
        """Return the numbers of a step; {} while they are not known."""
        self.start()
        return dict(self._known.get(step, {}))

    def along(self, data: Any, step: int, backends: Mapping[str, Any]) -> Any:
        """Return what a tracker logs for a step, with the step's numbers if they are known.

        Args:
            data: What the trainer logs: a dict, or a list of them. It is not changed, but copied.
            step: The step for which it is logged.
            backends: Trackers by name that can have the numbers that came too late for the call of their own
                step; see `late_numbers`.
        """
        self.start()
        any_step, with_rows = split(backends)
        numbers = self._known.get(step)
        with self._lock:
            carried = self._rows.next_for(step, self._known.get) if with_rows else None
        if with_rows and carried is not None:
            self._rows.define(with_rows)
            if carried != step:
                log_late(with_own_step(self._known.get(carried, {}), carried), step, with_rows)
        if numbers is None:
            self._mind_silence()
        elif step not in self._given:
            if not with_rows:
                data = _merged(data, numbers)
            elif carried == step:
                data = _merged(data, with_own_step(numbers, step))
            else:  # the row has the numbers of an earlier step
                log_late(numbers, step, any_step)
        with self._lock:
            if numbers is None:
                _keep(self._late, step, None)
            else:
                _keep(self._given, step, None)
                self._late.pop(step, None)
            late = self._late_ones()
        for past_step, late_numbers in late:
            if not backends:
                self._left_out += 1
                notice("scalars: late", f"{_LEFT_OUT}; {self._folder}/live/scalars.jsonl has them")
            log_late(late_numbers, past_step, any_step)
        return data

    def _late_ones(self) -> list[tuple[int, dict[str, float]]]:
        """Return late steps whose numbers are known by now, a few at once; each only once."""
        numbers_by_step = ((past_step, self._known.get(past_step)) for past_step in self._late)
        late = [(past_step, known) for past_step, known in numbers_by_step if known is not None]
        for past_step, _ in late[:_LATE_AT_ONCE]:
            del self._late[past_step]
            _keep(self._given, past_step, None)
        return late[:_LATE_AT_ONCE]

    def _mind_silence(self) -> None:
        begun = self._begun = self._begun or time.monotonic()
        lasts = len(self._late) >= _SILENT_STEPS and time.monotonic() - begun > _SILENT_SEC
        if lasts and not self._known:
            notice(
                "scalars: silence",
                f"no numbers for the tracker after {len(self._late)} steps: is {self._folder} shared with "
                "the host of the driver, and does python -m sglang_instrument.live run there?",
            )

    def _run(self) -> None:
        while True:
            try:
                self._read()
            except OSError:  # not there yet; `_mind_silence` reports a disk that fails
                pass
            except Exception as error:
                log_swallowed("reading the numbers of steps", error)
            if self._stopped.wait(_LOOK_SEC):
                return

    def _read(self) -> None:
        """Take the lines that were appended since the last time; leave one that has not ended yet."""
        with open_regular(self._folder / "live" / "scalars.jsonl") as file:
            if os.fstat(file.fileno()).st_size < self._offset:
                self._offset = 0  # another file
            while True:
                file.seek(self._offset)
                piece = file.read(_PIECE_BYTES)
                whole = piece.rfind(b"\n") + 1
                if not whole:
                    return
                self._take(piece[:whole].splitlines())
                self._offset += whole

    def _take(self, lines: Iterable[bytes]) -> None:
        for line in lines:
            try:
                answer = orjson.loads(line)
                if answer.get("run_id") != self._run_id:
                    continue
                if answer.get("failed"):
                    why = plain(str(answer["failed"]))
                    notice("scalars: follower", f"the follower of {self._folder} failed: {why}")
                elif isinstance(answer["step"], int):
                    _keep(self._known, answer["step"], _numbers(answer["scalars"]))
            except (ValueError, LookupError, TypeError, AttributeError):
                continue  # torn by a kill or a full disk, or not the follower's


def _numbers(scalars: dict[str, Any]) -> dict[str, float]:
    """Return what a tracker takes: anybody who can write to the folder of logs may have added a line."""
    return {
        f"{PREFIX}{name}": value
        for name, value in scalars.items()
        if name.isidentifier() and type(value) in (int, float)
    }


def _keep(entries: dict[Key, Value], key: Key, value: Value) -> None:
    """Add an entry, and forget the oldest beyond the limit."""
    entries[key] = value
    while len(entries) > _MOST_STEPS:
        del entries[next(iter(entries))]


def _merged(data: Any, numbers: Mapping[str, float]) -> Any:
    """Return a copy with the numbers, in a list's first element. The trainer's own names win."""
    if isinstance(data, dict):
        return {**data, **{name: value for name, value in numbers.items() if name not in data}}
    if isinstance(data, list) and data and isinstance(data[0], dict):
        return [_merged(data[0], numbers), *data[1:]]
    return data
