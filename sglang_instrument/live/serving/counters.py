"""Keep the counters that Prometheus reads growing, also when the follower begins anew.

A follower that starts reads the newest steps again, but not the earlier ones, so its own counters begin
lower. What was served is therefore saved first, in `LOGS/live`, and the difference is added after a start.
"""

import socket
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import msgspec

from sglang_instrument.live.state import Snapshot, Totals
from sglang_instrument.regular_files import read_regular
from sglang_instrument.safe_files.folder import SafeFolder
from sglang_instrument.schema import ENGINE_ROLES, PHASES

#: A counter: its name and the values of its labels, as in `LABELS`.
Series = tuple[str, ...]

#: The labels of each counter. What a program may name at will is bounded: see `_MOST_EVENTS`.
LABELS: Final = {
    "requests": ("role", "worker", "server"),
    "failed_requests": ("role", "worker", "server"),
    "tokens": ("role", "worker", "server"),
    "records": ("role", "worker", "server"),
    "lost_records": ("role", "worker", "server"),
    "retractions": ("role", "worker", "server"),
    "preemptions": ("role", "worker", "server"),
    "aborts": ("role", "worker", "server"),
    "phase_seconds": ("role", "worker", "server", "phase"),
    "events": ("role", "event", "phase"),
    "event_seconds": ("role", "event", "phase"),
}
_OF_WORKER: Final = ("requests", "failed_requests", "tokens", "records", "lost_records")
_OF_SCHEDULER: Final = ("retractions", "preemptions", "aborts")
_MOST_EVENTS: Final = 256  # names of events; the others are counted together
_OTHERS: Final = "..."
_DISK_SEC: Final = 2.0  # a disk that hangs delays an answer by so much, once


class _Saved(msgspec.Struct):
    """What was served last: the file in `LOGS/live`."""

    run_id: str | None
    series: list[tuple[tuple[str, ...], float]]


class Counters:
    """Turns the totals of snapshots into counters that only grow while a run lasts.

    Args:
        name: Of the file that keeps what was served; one for each address that is listened at.
    """

    def __init__(self, name: str) -> None:
        self._name = f"counters_{name}.json"
        self._run: tuple[str, str | None] | None = None  # its folder and its id
        self._read: dict[Series, float] = {}
        self._added: dict[Series, float] = {}
        self._served: dict[Series, float] = {}
        self._names: set[tuple[str, str]] = set()
        self._saving: threading.Thread | None = None
        self.failed: str | None = None

    def of(self, snapshot: Snapshot) -> Mapping[Series, float]:
        """Return the counters; none before the run was read up to its end for the first time."""
        if snapshot.waiting is not None:
            return self._served
        run = (snapshot.logs, snapshot.run_id)
        if snapshot.catching_up and run != self._run:
            return {}
        if run != self._run:
            self._begin(run)
        read = self._flat(snapshot.totals)
        if any(read.get(series, 0) < value for series, value in self._read.items()):
            if snapshot.catching_up:
                return self._served
            self._added = _differences(self._served, read)  # the follower began anew
        self._read = read
        served = dict(self._served)
        for series in self._added | read:  # at least as much as before: sums of seconds are rounded
            value = read.get(series, 0) + self._added.get(series, 0)
            served[series] = max(value, served.get(series, 0))
        if served != self._served or self.failed is not None:
            self._served = served
            self._save(Path(snapshot.logs))
        return self._served

    def _begin(self, run: tuple[str, str | None]) -> None:
        """Go on from what was served of a run before, if anything was."""
        saved = self._load(Path(run[0]) / "live" / self._name)
        self._run, self._added = run, {}
        self._served = dict(saved.series) if saved is not None and saved.run_id == run[1] else {}
        self._read = self._served  # counters never go back: these may be larger
        self._names = {
            (series[1], series[2]) for series in self._served if series[0] == "events" and len(series) == 4
        }

    def _load(self, path: Path) -> _Saved | None:
        try:
            return msgspec.json.decode(read_regular(path), type=_Saved)
        except (OSError, msgspec.MsgspecError, UnicodeDecodeError):
            return None  # a first start, or no file of ours

    def _save(self, logs: Path) -> None:
        """Save what is served, before it is: after a crash nothing smaller is served."""
        if self._saving is not None and self._saving.is_alive():
            return  # the disk hangs; the follower says so
        state = _Saved(self._run and self._run[1], list(self._served.items()))
        self._saving = threading.Thread(
            target=self._write, args=(SafeFolder(logs, ("live",)), state), daemon=True
        )
        self._saving.start()
        self._saving.join(_DISK_SEC)

    def _write(self, folder: SafeFolder, state: _Saved) -> None:
        try:
            folder.write(self._name, msgspec.json.encode(state))
            folder.delete_drafts()
            self.failed = None
        except OSError as error:
            why = f"{folder.path / self._name}: {error.strerror or error}"
            self.failed = f"{why}; counters begin anew when this command is started again"

    def _flat(self, totals: Totals) -> dict[Series, float]:
        counts: dict[Series, float] = {}
        for (role, worker), counters in totals.items():
            process = process_labels(role, worker)
            names = (*_OF_WORKER, *(_OF_SCHEDULER if role == "scheduler" else ()))
            counts |= {(name, *process): getattr(counters, name) for name in names}
            for (event, phase), (count, sec) in counters.events.items():
                known = phase if phase in PHASES else "other"
                for series, more in (
                    (("phase_seconds", *process, known), sec),
                    (("events", role, self._named(role, event), known), count),
                    (("event_seconds", role, self._named(role, event), known), sec),
                ):
                    counts[series] = counts.get(series, 0) + more
        return counts

    def _named(self, role: str, event: str) -> str:
        if (role, event) not in self._names:
            if len(self._names) >= _MOST_EVENTS:
                return _OTHERS
            self._names.add((role, event))
        return event


def process_labels(role: str, worker: int | None) -> tuple[str, str, str]:
    """Return the values of the labels role, worker and server of a process."""
    rank = "" if worker is None else str(worker)
    return (role, "", rank) if role in ENGINE_ROLES else (role, rank, "")


def instance(host: str, port: int) -> str:
    """Return a name of the server at this address that can be part of a file name."""
    return "".join(letter if letter.isalnum() else "-" for letter in f"{socket.gethostname()}_{host}_{port}")


def _differences(served: Mapping[Series, float], read: Mapping[Series, float]) -> dict[Series, float]:
    """Return how much more was served than read, of each that was."""
    added = {series: value - read.get(series, 0) for series, value in served.items()}
    return {series: value for series, value in added.items() if value > 0}
