"""One worker of the demo on the real engine: the same step again and again, with install and without.

    python demo_steps.py SCRATCH SECONDS

prints one line of JSON for each pair: the wall seconds of the step with and without, in random order.
"""

import json
import os
import random
import sys
import time
from pathlib import Path

import sglang_instrument
from sglang_instrument.demo.launch import _environment
from sglang_instrument.demo.model import ensure_model
from sglang_instrument.demo.options import DemoOptions, WorkerOrder
from sglang_instrument.demo.problems import draw
from sglang_instrument.demo.worker import _prompts, _Reports, _start


def main(scratch: Path, seconds: float) -> None:
    run = DemoOptions(workers=1, requests=16, max_tokens=64)
    os.environ.update(_environment(0, run, run_id="bench"))
    model = ensure_model(scratch.parent, lambda *progress: None)
    quiet = os.open(os.devnull, os.O_WRONLY)
    order = WorkerOrder(run=run, rank=0, model=str(model), scratch=str(scratch), report_fd=quiet)
    engine, rollout, _ = _start(order, Reports(quiet))
    problems = draw(run.requests, seed=0, step=1, worker=0, validate=False)

    def step(installed: bool) -> float:
        if installed:
            sglang_instrument.install(log_dir=str(scratch / "logs"))
        began = time.perf_counter()
        rollout.generate_sequences(_prompts(problems, step=1, validate=False))
        took = time.perf_counter() - began
        sglang_instrument.uninstall()
        return took

    for warm_up in (True, False, True, False):
        step(warm_up)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        first = random.random() < 0.5
        took = {installed: step(installed) for installed in (first, not first)}
        print(json.dumps({"with": took[True], "without": took[False]}), flush=True)
    engine.shutdown()


class Reports(_Reports):
    """Tells nobody; the worker's own would end it when nobody listens."""

    def __init__(self, descriptor: int) -> None:
        self._pipe = os.fdopen(descriptor, "w")


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
