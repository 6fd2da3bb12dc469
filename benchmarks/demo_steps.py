"""Repeat one step of one demo worker on the real engine, with and without install, or being watched.

    python demo_steps.py SCRATCH SECONDS install|watched

prints one line of JSON for each pair of neighbouring means (`switched/taken_out.py`): the wall seconds of a
step with and of one without. With "watched", each step is recorded; `watch` and the follower of the tracker
run, or are stopped. What was logged while they were stopped is deleted before they go on, so they read only
what is logged while they run.
"""

import json
import os
import shutil
import sys
import time
from pathlib import Path

from switched import watchers
from switched.taken_out import neighbours, put_back

import sglang_instrument
from sglang_instrument.demo.launch import _environment
from sglang_instrument.demo.model import ensure_model
from sglang_instrument.demo.options import DemoOptions, WorkerOrder
from sglang_instrument.demo.problems import draw
from sglang_instrument.demo.worker import _prompts, _Reports, _start


def main(scratch: Path, seconds: float, what: str) -> None:
    run = DemoOptions(workers=1, requests=16, max_tokens=64)
    os.environ.update(_environment(0, run, run_id="bench"))
    model = ensure_model(scratch.parent, lambda *progress: None)
    quiet = os.open(os.devnull, os.O_WRONLY)
    order = WorkerOrder(run=run, rank=0, model=str(model), scratch=str(scratch), report_fd=quiet)
    engine, rollout, _ = _start(order, Reports(quiet))
    problems = draw(run.requests, seed=0, step=1, worker=0, validate=False)

    log_dir = scratch / "logs"
    is_watched = what == "watched"
    sglang_instrument.install(log_dir=str(log_dir), scalars=is_watched)
    was_recorded = [False]  # step 0 does not count as a step

    def step_sec(recorded: bool) -> float:
        number = len(was_recorded)
        assert any(log_dir.glob(f"*/step_{number - 1}/worker_*.jsonl")) == was_recorded[-1]
        was_recorded.append(recorded or is_watched)
        began = time.perf_counter()
        rollout.generate_sequences(_prompts(problems, step=number, validate=False))
        return time.perf_counter() - began

    switch = put_back
    if is_watched:
        logs = Path(sglang_instrument.status()["folder"])
        step_sec(True)
        watchers.start(logs)
        switch = Watching(logs, was_recorded).let
    for pair in neighbours(step_sec, seconds, switch):
        print(json.dumps(pair), flush=True)
    engine.shutdown()


class Watching:
    """Lets those that watch a run go on, or stops them.

    Args:
        logs: The run's folder.
        was_recorded: Whether the folder of each step is there.
    """

    def __init__(self, logs: Path, was_recorded: list[bool]) -> None:
        self._logs = logs
        self._was_recorded = was_recorded
        self._first_unseen: int | None = None

    def let(self, on: bool) -> None:
        """Let them go on, without the steps that were logged while they were stopped; or stop them."""
        if not on and self._first_unseen is None:
            self._first_unseen = len(self._was_recorded)
        elif on and self._first_unseen is not None:
            for step in range(self._first_unseen, len(self._was_recorded)):
                shutil.rmtree(self._logs / f"step_{step}")
            self._first_unseen = None
            self._was_recorded[-1] = False
        watchers.let_run(self._logs, on)


class Reports(_Reports):
    """Drop all reports; with its own reports, the worker would end itself because nobody reads them."""

    def __init__(self, descriptor: int) -> None:
        self._pipe = os.fdopen(descriptor, "w")


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]), sys.argv[3])
