"""Start and stop each capture of a run in one of its processes, and record which step it belongs to."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from sglang_instrument.profilers.engines import start_engine, stop_engine
from sglang_instrument.profilers.http_client import all_at_once, ask
from sglang_instrument.profilers.in_training.find_engines import EnginesFound
from sglang_instrument.profilers.in_training.plan import ProfilePlan
from sglang_instrument.profilers.options import DEFAULT_STEPS_IN_A_RUN as DEFAULT_STEPS
from sglang_instrument.profilers.switching import SwitchOutcome, start_all, stop_all
from sglang_instrument.profilers.trace_files import files_in
from sglang_instrument.profilers.workers import EngineWorker, workers_at, workers_behind
from sglang_instrument.regular_files import write_anew

#: Called with a key and a text when something goes wrong.
Say = Callable[[str, str], object]
#: Called with a step, a worker and the fields of an event for the file of that step.
Note = Callable[[int, int, Mapping[str, Any]], object]

_START_SEC: Final = 30.0
_STOP_SEC: Final = 600.0
_LOADS: Final = ("/v1/loads", "/get_load")


@dataclass(frozen=True)
class _RunningCapture:
    """The profilers of a step, while they record and afterwards."""

    engines: Sequence[tuple[Any, SwitchOutcome]]
    workers: Sequence[tuple[EngineWorker, SwitchOutcome]]


class Captures:
    """What starts and stops the profilers of chosen steps; one thread alone uses it.

    Args:
        plan: What to profile.
        experiment: Begins the ids of the captures.
        run_id: Of the run; the processes of one run claim each capture once.
        folder: Of the run; its `.locks` hold the claims, its `profiles` the notes.
        say: Says what goes wrong.
        note: Logs an event in the file of a step.
    """

    def __init__(
        self, plan: ProfilePlan, *, experiment: str, run_id: str, folder: Path, say: Say, note: Note
    ) -> None:
        self._plan, self._experiment, self._run_id = plan, experiment, run_id
        self._folder, self._say, self._note = folder, say, note
        self._open: dict[int, _RunningCapture] = {}

    def begin(self, step: int, worker: int, engines_found: EnginesFound) -> None:
        """Start the profilers of a step's engines, unless another process has claimed them."""
        if step not in self._open:
            capture = self._start(f"{self._experiment}-step_{step}", step, worker, engines_found, {})
            if capture is not None:
                self._open[step] = capture

    def slow(self, step: int, worker: int, engines_found: EnginesFound, why: Mapping[str, Any]) -> None:
        """Record what the engines do while a request does not end, and how much they have to do."""
        name = f"{self._experiment}-step_{step}-slow_{time.strftime('%H%M%S')}"
        self._start(name, step, worker, engines_found, {"why": dict(why)})

    def end(self, step: int) -> None:
        """Stop what the step's beginning started; what has stopped by itself is left alone."""
        capture = self._open.pop(step, None)
        if capture is None:
            return
        stopped = [
            stop_engine(engine, outcome.number, timeout_sec=_STOP_SEC)
            for engine, outcome in capture.engines
            if not self._has_ended(outcome)
        ]
        late = [worker for worker, outcome in capture.workers if not self._has_ended(outcome)]
        stopped += stop_all(late, timeout_sec=_STOP_SEC)
        self._complain(step, stopped)

    def _has_ended(self, outcome: SwitchOutcome) -> bool:
        """Return whether a profiler has seen its forward steps, as far as its files tell here."""
        files = files_in(outcome.folder) if self._plan.options.num_steps is not None else []
        by_stage = self._plan.options.profile_by_stage  # the files of one stage say nothing of the other
        return bool(files) and not by_stage and all(file.whole for file in files)

    def stop_all(self) -> None:
        """Stop all that records: nothing else does it later."""
        for step in list(self._open):
            self.end(step)

    def _start(
        self, name: str, step: int, worker: int, engines_found: EnginesFound, facts: dict[str, Any]
    ) -> _RunningCapture | None:
        options = self._plan.options.with_(profile_id=name)
        if facts:  # no step stops a capture that a slow request began
            options = options.with_(num_steps=options.num_steps or DEFAULT_STEPS)
        engines = self._mine(engines_found.engines, worker)
        workers = self._chosen(engines_found) if not engines_found.engines else []
        if not engines and not workers:
            return None
        # An engine in this process is claimed under its worker's name. A capture of servers is claimed by
        # the first process that asks.
        if not self._claim(f"{name}-worker_{worker}" if engines else name):
            return None
        loads = _loads(workers)
        if facts and len(workers) > 1:
            workers = [max(workers, key=lambda candidate: loads.get(candidate.url, {}).get("requests", 0))]
        outcomes = [
            start_engine(engine, options, worker, timeout_sec=_START_SEC, name=f"worker_{worker}")
            for engine in engines
        ]
        outcomes += start_all(workers, options, timeout_sec=_START_SEC)
        self._complain(step, outcomes)
        for outcome in outcomes:
            if outcome.ok:
                self._tell(step, worker, outcome, {**facts, "load": loads.get(outcome.url)})
        return _RunningCapture(
            [(engine, outcome) for engine, outcome in zip(engines, outcomes, strict=False) if outcome.ok],
            [
                (server, outcome)
                for server, outcome in zip(workers, outcomes[len(engines) :], strict=True)
                if outcome.ok
            ],
        )

    def _mine(self, engines: Sequence[Any], worker: int) -> list[Any]:
        wanted = self._plan.workers
        return list(engines) if wanted is None or worker in wanted else []

    def _chosen(self, engines_found: EnginesFound) -> list[EngineWorker]:
        router = engines_found.router
        listed = workers_behind([router]) if router else workers_at(engines_found.urls)
        wanted = self._plan.workers
        return [worker for worker in listed if wanted is None or worker.number in wanted]

    def _claim(self, name: str) -> bool:
        """Return whether this process is the first of the run that wants this capture."""
        path = self._folder / ".locks" / f"profile-{name}-{self._run_id}"
        path.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
        except FileExistsError:
            return False
        return True

    def _tell(self, step: int, worker: int, outcome: SwitchOutcome, facts: Mapping[str, Any]) -> None:
        """Write beside the run what was profiled, and log it in the step: each names the other."""
        fields = {
            "profile_id": outcome.profile_id,
            "folder": outcome.folder,
            **({"worker_url": outcome.url} if "://" in outcome.url else {}),
            **{key: value for key, value in facts.items() if value is not None},
        }
        self._note(step, worker, fields)
        path = self._folder / "profiles" / f"{outcome.profile_id}.json"
        path.parent.mkdir(parents=True, exist_ok=True)
        note = {"step": step, "worker": worker, "run_id": self._run_id, "started_unix": time.time(), **fields}
        write_anew(path, json.dumps(note).encode())

    def _complain(self, step: int, outcomes: Sequence[SwitchOutcome]) -> None:
        for outcome in outcomes:
            if not outcome.ok:
                self._say(
                    f"profile: {outcome.url}",
                    f"step {step}: the profiler of {outcome.url} failed: {outcome.words}",
                )


def _loads(workers: Sequence[EngineWorker]) -> dict[str, dict[str, Any]]:
    """Return how much each server has to do: {"requests": running and waiting ones}, as far as it tells."""
    asked = all_at_once(lambda worker: _load(worker.url), workers)
    return {worker.url: load for worker, load in zip(workers, asked, strict=True) if load}


def _load(url: str) -> dict[str, Any]:
    for path in _LOADS:
        answer = ask("GET", url + path, timeout_sec=10.0).json()
        rows = answer.get("loads") if isinstance(answer, dict) else answer
        if isinstance(rows, list) and rows and all(isinstance(row, dict) for row in rows):
            return _counted(rows)
    return {}


def _counted(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    def total(*names: str) -> int:
        return sum(int(row[name]) for row in rows for name in names if isinstance(row.get(name), int))

    running, waiting = total("num_running_reqs"), total("num_waiting_reqs")
    whole = total("num_total_reqs", "num_reqs")
    return {"requests": max(running + waiting, whole), "running": running, "waiting": waiting}
