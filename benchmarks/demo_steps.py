"""One worker of the demo on the real engine: the same step again and again, with install and without.

    python demo_steps.py SCRATCH SECONDS

prints one line of JSON for each pair: the wall seconds of a step with and without, one right after the other
in random order, for the engine is slower for some seconds, then quicker. So `install()` is called once, and
between steps the patched functions get their own code back or ours again (`switched/taken_out.py`). The first
step with it is not measured: threads start and the file of the process is written, once in a run.
"""

import itertools
import json
import os
import random
import sys
import time
from pathlib import Path

from switched.taken_out import put_back

import sglang_instrument
from sglang_instrument.demo.launch import _environment
from sglang_instrument.demo.model import ensure_model
from sglang_instrument.demo.options import DemoOptions, WorkerOrder
from sglang_instrument.demo.problems import draw
from sglang_instrument.demo.worker import _prompts, _Reports, _start

SETTLING_SEC = 0.15  # our threads write what a step left, and rest


def main(scratch: Path, seconds: float) -> None:
    run = DemoOptions(workers=1, requests=16, max_tokens=64)
    os.environ.update(_environment(0, run, run_id="bench"))
    model = ensure_model(scratch.parent, lambda *progress: None)
    quiet = os.open(os.devnull, os.O_WRONLY)
    order = WorkerOrder(run=run, rank=0, model=str(model), scratch=str(scratch), report_fd=quiet)
    engine, rollout, _ = _start(order, Reports(quiet))
    problems = draw(run.requests, seed=0, step=1, worker=0, validate=False)

    def step(number: int) -> float:
        began = time.perf_counter()
        rollout.generate_sequences(_prompts(problems, step=number, validate=False))
        return time.perf_counter() - began

    log_dir = scratch / "logs"
    sglang_instrument.install(log_dir=str(log_dir))
    numbers = itertools.count(1)

    def measured(installed: bool) -> float:
        put_back(installed)
        took_sec = step(number := next(numbers))
        time.sleep(SETTLING_SEC)
        written = list(log_dir.glob(f"*/step_{number}/worker_*.jsonl"))
        assert bool(written) == installed, (number, written)
        return took_sec

    for warm_up in (True, False, True, False):
        measured(warm_up)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        first = random.random() < 0.5
        took = {installed: measured(installed) for installed in (first, not first)}
        print(json.dumps({"with": took[True], "without": took[False]}), flush=True)
    engine.shutdown()


class Reports(_Reports):
    """Tells nobody; the worker's own would end it when nobody listens."""

    def __init__(self, descriptor: int) -> None:
        self._pipe = os.fdopen(descriptor, "w")


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
