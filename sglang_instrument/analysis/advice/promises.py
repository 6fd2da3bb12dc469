"""Keep what was promised, and find the promise that was made before a later run began."""

import hashlib
import json
import os
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from sglang_instrument.analysis.advice.advise import Advice
from sglang_instrument.analysis.settings.recorded import Value
from sglang_instrument.analysis.store.homes import homes
from sglang_instrument.regular_files import open_regular

_FILE: Final = "promises.jsonl"
_MOST_BYTES: Final = 4 * 1024 * 1024  # of promises that are read, the newest


@dataclass(frozen=True)
class Promise:
    """What advice said a change would save.

    Attributes:
        made_us: When it was said, in Unix microseconds.
        run: What names the run: its folder and run id, hashed.
        lever: The lever.
        setting: The setting, by its name in the trainer or the engine.
        now: Its value then.
        proposed: The value that was proposed.
        step_sec: Mean seconds of a step then.
        saves_sec: Seconds that a step was to save.
        low: Begin of the 80 % interval.
        high: End of it.
    """

    made_us: int
    run: str
    lever: str
    setting: str
    now: Value
    proposed: Value
    step_sec: float
    saves_sec: float
    low: float
    high: float


def promises_of(advice: Advice, run: str) -> list[Promise]:
    """Return what advice promises: its levers whose saving was simulated or measured, and is one for sure."""
    now_us = time.time_ns() // 1000
    return [
        Promise(
            made_us=now_us,
            run=run,
            lever=advised.lever.name,
            setting=advised.proposal.setting,
            now=advised.proposal.now,
            proposed=advised.proposal.proposed,
            step_sec=advice.step_sec,
            saves_sec=advised.saving.sec,
            low=advised.saving.low,
            high=advised.saving.high,
        )
        for advised in advice.levers
        if advised.saving is not None and advised.saving.low > 0
    ]


def name_of_run(folder: Path, run_id: str | None) -> str:
    """Return what names a run in the file of promises."""
    return hashlib.sha256(os.fsencode(folder.absolute()) + (run_id or "").encode()).hexdigest()[:16]


def keep_promises(home: Path, promises: Sequence[Promise]) -> Path | None:
    """Append promises to the store of a run, or to the user's cache where the folder is not the user's.

    Args:
        home: The run's folder.
        promises: To keep. Those that were kept last, and promise the same, are not kept again.

    Returns:
        The file; None if no folder could be written, or there is nothing new.
    """
    if not promises:
        return None
    last = read_promises(home, promises[0].run)
    if {_said(promise) for promise in promises} <= {_said(promise) for promise in last}:
        return None
    lines = b"".join(json.dumps(asdict(promise)).encode() + b"\n" for promise in promises)
    for folder in homes(home):
        try:
            folder.make()
            with folder.changing(_FILE, append=True) as file:
                file.write(lines)
            return folder.path / _FILE
        except OSError:
            continue
    return None


def read_promises(home: Path, run: str) -> list[Promise]:
    """Return the promises for a run, the oldest first; what is no promise is passed over.

    Args:
        home: The run's folder.
        run: What names it.
    """
    promises = []
    for folder in homes(home):
        for line in _newest_lines(folder.path / _FILE) if folder.has_file(_FILE) else ():
            promise = _promise(line)
            if promise is not None and promise.run == run:
                promises.append(promise)
    return sorted(promises, key=lambda promise: promise.made_us)


def _newest_lines(path: Path) -> list[bytes]:
    """Return the last lines of a file that may not be written; none of one that cannot be read."""
    try:
        with open_regular(path) as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - _MOST_BYTES))
            return file.read().splitlines()
    except OSError:
        return []


def _promise(line: bytes) -> Promise | None:
    try:
        return Promise(**json.loads(line))
    except (ValueError, TypeError):
        return None


def _said(promise: Promise) -> tuple[Any, ...]:
    """Return what a promise says, without when."""
    saves = tuple(round(sec, 3) for sec in (promise.saves_sec, promise.low, promise.high))
    return (promise.lever, promise.setting, promise.now, promise.proposed, *saves)
