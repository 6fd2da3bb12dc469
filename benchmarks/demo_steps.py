"""One worker of the demo on the real engine: the same step again and again, with install and without.

    python demo_steps.py SCRATCH SECONDS

prints one line of JSON for each pair: the wall seconds of a step with and without. Steps come in blocks, with
and without in random order; the first of each block is not measured, for in it threads start, the file of the
process is written and a log is opened, which no later step does.
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

STEPS = 3  # measured ones of a block


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

    def block(installed: bool) -> list[float]:
        if installed:
            sglang_instrument.install(log_dir=str(scratch / "logs"))
        took = [step(number) for number in range(1 + STEPS)]
        sglang_instrument.uninstall()
        return took[1:]

    for warm_up in (True, False):
        block(warm_up)
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        first = random.random() < 0.5
        took = {installed: block(installed) for installed in (first, not first)}
        for with_it, without in zip(took[True], took[False], strict=True):
            print(json.dumps({"with": with_it, "without": without}), flush=True)
    engine.shutdown()


class Reports(_Reports):
    """Tells nobody; the worker's own would end it when nobody listens."""

    def __init__(self, descriptor: int) -> None:
        self._pipe = os.fdopen(descriptor, "w")


if __name__ == "__main__":
    main(Path(sys.argv[1]), float(sys.argv[2]))
