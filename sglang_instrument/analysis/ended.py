"""Tell whether a run is over, and who fell silent first in a step that never ended."""

import os
import time
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import orjson

from sglang_instrument.analysis.clocks import clock_table
from sglang_instrument.analysis.digest import Digest
from sglang_instrument.analysis.files import File, controls_of
from sglang_instrument.schema import LOG_CLOSED, LOG_OPENED, STEP_CLOSED

_SILENT_SEC: Final = 120.0  # a worker that lives reports after 30 s and 60 s what is still open

_Step = tuple[int, bool]


@dataclass(frozen=True)
class Silence:
    """A step that never ended, and the worker that wrote its last record first.

    Attributes:
        step, validate: The step.
        worker: Who fell silent first.
        ahead_sec: How much earlier than the next worker of the step; None if it was alone.
        done: How many requests each worker of the step had completed.
        last_us: When each wrote its last record, on the clocks as barriers align them.
    """

    step: int
    validate: bool
    worker: int
    ahead_sec: float | None
    done: dict[int, int]
    last_us: dict[int, int]


def is_over(folder: Path, files: Sequence[File], runs: Collection[str]) -> bool:
    """Return whether nobody writes to the runs of a folder any more, as far as can be told from here.

    A worker of this host is asked whether it lives; where none is known, or one was elsewhere, a run is over
    that nobody wrote to for two minutes.
    """
    alive = [_is_alive(facts) for facts in _workers(folder, runs)]
    if True in alive:
        return False
    newest_sec = max((file.mtime_ns for file in files), default=0) / 1e9
    return (bool(alive) and None not in alive) or time.time() - newest_sec > _SILENT_SEC


def _workers(folder: Path, runs: Collection[str]) -> Iterator[dict[str, Any]]:
    """Yield what the workers of the runs that count said of themselves."""
    for path in sorted((folder / "processes").glob("worker_*.json")):
        try:
            facts = orjson.loads(path.read_bytes())
        except (OSError, ValueError):
            continue
        if isinstance(facts, dict) and facts.get("run_id") in runs:
            yield facts


def _is_alive(facts: dict[str, Any]) -> bool | None:
    """Return whether a process is there; None if it was on another host."""
    pid = facts.get("pid")
    if facts.get("host") != os.uname().nodename or not isinstance(pid, int) or pid <= 0:
        return None
    try:
        os.kill(pid, 0)  # asks, and sends nothing
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True


def silences(digest: Digest, files: Sequence[File]) -> list[Silence]:
    """Return the steps in which workers wrote their last record, and that these never closed."""
    last = _last_signs(digest)
    unclosed = _unclosed(files)
    found = []
    for step in sorted({step for step, _ in unclosed}):
        signs = {worker: at for (one, worker), at in last.items() if one == step}
        ended_here = [
            worker
            for worker in signs
            if (step, worker) in unclosed
            and signs[worker] == max(at for (_, who), at in last.items() if who == worker)
        ]
        if ended_here:
            first = min(ended_here, key=lambda worker: (signs[worker], worker))
            others = [at for worker, at in signs.items() if worker != first]
            ahead = (min(others) - signs[first]) / 1e6 if others else None
            if ahead is None or ahead > 0:
                done = {worker: _requests(digest, step, worker) for worker in sorted(signs)}
                found.append(Silence(*step, first, ahead, done, signs))
    return found


def _unclosed(files: Sequence[File]) -> set[tuple[_Step, int]]:
    """Return the steps that workers opened, and neither closed nor left cleanly."""
    opened = {file.path: file for file, _ in controls_of(files, LOG_OPENED)}
    closed = {file.path for event in (STEP_CLOSED, LOG_CLOSED) for file, _ in controls_of(files, event)}
    places = [file.place for path, file in opened.items() if path not in closed]
    return {
        ((place.step, place.validate), place.worker)
        for place in places
        if place is not None and place.role == "worker" and place.step is not None
    }


def _last_signs(digest: Digest) -> dict[tuple[_Step, int], int]:
    """Return when each worker ended its last span of each step."""
    ahead_sec = dict(clock_table(digest).select("worker", "offset_sec").iter_rows())
    signs: dict[tuple[_Step, int], int] = {}
    for row in digest.of_workers().steps.iter_rows(named=True):
        key = ((row["step"], row["validate"]), row["worker"])
        lasted_sec = (row["duration_sec"] or 0.0) - (ahead_sec.get(row["worker"]) or 0.0)
        signs[key] = max(signs.get(key, 0), row["start_us"] + round(lasted_sec * 1e6))
    return signs


def _requests(digest: Digest, step: _Step, worker: int) -> int:
    return len(digest.of_workers().requests.filter(step=step[0], validate=step[1], worker=worker))
