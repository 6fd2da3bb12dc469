"""Record one capture: start the profilers, send probe requests or wait, stop, collect the traces."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from sglang_instrument.profilers.from_outside.notes import mark_stopped, write_note
from sglang_instrument.profilers.from_outside.probe_requests import send_probes
from sglang_instrument.profilers.http_client import all_at_once
from sglang_instrument.profilers.identify_engine import identify
from sglang_instrument.profilers.options import ProfileOptions
from sglang_instrument.profilers.switching import SwitchOutcome, new_profile_id, start_all, stop_all
from sglang_instrument.profilers.trace_files import POLL_SEC, TraceFile, files_in, wait_for_files
from sglang_instrument.profilers.workers import EngineWorker

_BY_ITSELF_SEC: Final = 3.0  # time for a profiler that has recorded its steps to write its file
_SPARE_TOKENS: Final = 16

#: Called with the current action, how many of its parts are done, and how many there are.
Progress = Callable[[str, int, int], object]


@dataclass(frozen=True)
class CaptureResult:
    """The result of a capture.

    Attributes:
        folder: The folder of the traces; None if this machine cannot see it.
        started: An outcome per worker; stopped: per worker that had to be stopped.
        asked: Probe requests sent; answered: probe requests answered.
        files: The files of each started worker, in the order of `started`.
    """

    folder: Path | None
    started: list[SwitchOutcome]
    stopped: list[SwitchOutcome] = field(default_factory=list)
    asked: int = 0
    answered: int = 0
    files: list[list[TraceFile]] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether every worker recorded, answered its probe requests, and its files are complete."""
        if self.answered < self.asked:  # a worker that crashed after its first file is no success
            return False
        recorded = all(outcome.ok for outcome in (*self.started, *self.stopped))
        return recorded and all(
            files and all(file.whole is not False for file in files) for files in self.files
        )


def start_and_note(
    workers: Sequence[EngineWorker],
    options: ProfileOptions,
    *,
    timeout_sec: float,
    retries: int = 1,
    api_key: str | None = None,
) -> tuple[list[SwitchOutcome], Path | None]:
    """Start all profilers, and write a note of what was started; see `start_all`."""
    named = options if options.profile_id else options.with_(profile_id=new_profile_id())
    started = start_all(workers, named, timeout_sec=timeout_sec, retries=retries, api_key=api_key)
    noted = any(outcome.ok and outcome.folder for outcome in started)
    return started, write_note(named, named.profile_id or "", started) if noted else None


def capture(
    workers: Sequence[EngineWorker],
    options: ProfileOptions,
    *,
    requests: int = 4,
    new_tokens: int | None = None,
    wait_sec: float = 600.0,
    timeout_sec: float = 60.0,
    api_key: str | None = None,
    progress: Progress = lambda doing, done, wanted: None,
) -> CaptureResult:
    """Record all workers once, and return when the traces are written.

    However it ends, also by Ctrl-C, no profiler that it started keeps running.

    Args:
        workers: The workers to record.
        options: What to record.
        requests: Probe requests per worker; 0 waits for other traffic.
        new_tokens: Tokens per probe; by default enough for `num_steps`.
        wait_sec: The longest wait for steps to be recorded, and for files to be written.
        timeout_sec: For starting each worker.
        api_key: The servers' admin key, if they have one.
        progress: Called with the current action.
    """
    progress("starting", 0, len(workers))
    try:
        started, folder = start_and_note(workers, options, timeout_sec=timeout_sec, api_key=api_key)
    except BaseException:  # Ctrl-C, while some may record already
        stop_all(workers, timeout_sec=timeout_sec, retries=0, api_key=api_key)
        raise
    recording = [worker for worker, outcome in zip(workers, started, strict=True) if outcome.ok]
    done = CaptureResult(folder, started)
    if not recording:
        return done
    folders = [Path(outcome.folder) for outcome in started if outcome.ok and outcome.folder]
    asked = answered = 0
    stopped: list[SwitchOutcome] = []
    try:
        if requests:
            progress("sending requests", 0, requests * len(recording))
            tokens = new_tokens or (options.num_steps or 0) + (options.start_step or 0) + _SPARE_TOKENS
            asked = requests * len(recording)
            answered = _probe(recording, requests, tokens, wait_sec, api_key)
        _wait_for_end(options, folders, wait_sec if not requests else _BY_ITSELF_SEC, progress)
    finally:
        late = [
            worker
            for worker, has_stopped in zip(recording, _stopped_by_itself(recording, started), strict=True)
            if not has_stopped
        ]
        progress("stopping", 0, len(late))
        stopped = stop_all(late, timeout_sec=wait_sec, api_key=api_key)
        if folder is not None:
            mark_stopped(folder)
    ranks = max((outcome.ranks or 1 for outcome in started), default=1)
    files = wait_for_files(
        folders,
        timeout_sec=min(wait_sec, 30.0) if folder is not None else 0.0,
        progress=lambda done, wanted, size: progress("waiting for the traces", done, wanted),
        wanted=ranks,
    )
    return CaptureResult(folder, started, stopped, asked, answered, files)


def _probe(
    workers: Sequence[EngineWorker], requests: int, tokens: int, timeout_sec: float, api_key: str | None
) -> int:
    def probe(worker: EngineWorker) -> int:
        engine = identify(worker.url, timeout_sec=timeout_sec, api_key=api_key)
        replies = send_probes(
            worker, engine, requests=requests, new_tokens=tokens, timeout_sec=timeout_sec, api_key=api_key
        )
        return sum(reply.ok for reply in replies)

    return sum(all_at_once(probe, workers))


def _wait_for_end(
    options: ProfileOptions, folders: Sequence[Path], wait_sec: float, progress: Progress
) -> None:
    """Wait until every profiler has stopped by itself, at most `wait_sec`; all of it without `num_steps`."""
    begun = time.monotonic()
    while (spent := time.monotonic() - begun) < wait_sec:
        stopped = sum(bool(files_in(folder)) for folder in folders)
        if folders and stopped == len(folders) and options.num_steps is not None:
            return
        progress("recording", round(spent), round(wait_sec))
        time.sleep(POLL_SEC)


def _stopped_by_itself(going: Sequence[EngineWorker], started: Sequence[SwitchOutcome]) -> list[bool]:
    """Return for each worker whether its profiler has stopped by itself: then its file is complete."""
    folders = {outcome.url: outcome.folder for outcome in started if outcome.ok}
    return [_has_whole_file(folders.get(worker.url, "")) for worker in going]


def _has_whole_file(folder: str) -> bool:
    files = files_in(folder) if folder else []
    return bool(files) and all(file.whole for file in files)
