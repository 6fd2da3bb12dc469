"""Measure verl's own rollout with and without us, pair by pair, in verl's environment.

Each answers with one JSON line:
python verl_rollout.py at_once FOLDER MODEL PAIRS: CPU, over an engine and requests that cost nothing;
python verl_rollout.py real FOLDER MODEL SECONDS: wall time, where all of it is real.
"""

import gc
import json
import os
import random
import statistics
import sys
import time
from pathlib import Path

import rollout as verl_rollout
import user_classes
import verl_requests
from rollout import QUESTIONS, batch, module
from stand_in import StandIn
from switched.taken_out import neighbours

import sglang_instrument
from sglang_instrument.recording.measure import spans

REQUESTS = 256
REAL_REQUESTS = 32  # of a step on the real engine: one of 256 is as noisy, and takes eight times as long
STEPS = 2  # measured at a time, where the engine costs nothing
THREE_TURNS = [QUESTIONS[1], QUESTIONS[3]]  # what the model was taught to answer in so many
WARM_UP = 1_000_000  # added to the number of a step that is not measured
APART = 1_000  # between the numbers of those that are


def timed(rollout, prompts, step):
    """Return CPU seconds a step, of all threads until all is written.

    A step before them is not measured: threads start there, files open, new code warms up.
    """
    prompts.meta_info["global_steps"] = step + WARM_UP
    rollout.generate_sequences(prompts)
    sglang_instrument.flush(30)
    gc.collect()
    cpu = time.process_time()
    for number in range(STEPS):
        prompts.meta_info["global_steps"] = step + number * APART
        rollout.generate_sequences(prompts)
    sglang_instrument.flush(30)  # what is encoded and written later is ours too
    return {"cpu_sec": (time.process_time() - cpu) / STEPS}


def instrumented(rollout, prompts, step, folder):
    sglang_instrument.install(log_dir=folder, experiment="run", trainers="verl")
    try:
        return timed(rollout, prompts, step)
    finally:
        sglang_instrument.uninstall()


class InPlace:
    """Stands where our buffer does, so that an event is logged where it ends, as in the reference's fork.

    With `log` that is the reference's logger, without it is nothing: the difference is what the logger takes
    there, between verl's own work, in memory that is as cold as ours.
    """

    def __init__(self, path, log):
        self._path, self._log = path, log

    def append(self, span):
        """Take an event as the fork's code has it at hand: its fields in a dict, its duration."""
        context = span.context
        extra = {**(context.extra or {}), **(span.extra or {})}
        duration = (span.end - span.start) / 1e9 if span.end else None
        if self._log is not None:
            self._log(self._path, span.event, duration, extra, context.worker, context.step)


def in_place(rollout, prompts, step, folder, log=None):
    """Measure steps whose events go to the reference's logger, or nowhere, where they end."""
    sglang_instrument.install(log_dir=folder, experiment="in_place", trainers="verl")
    path = str(Path(folder) / f"in_place_{step}.jsonl")
    spans.use_buffer(InPlace(path, log))
    try:
        return timed(rollout, prompts, step)
    finally:
        sglang_instrument.uninstall()
        Path(path).unlink(missing_ok=True)


def reference(step, folder):
    """Return the CPU seconds a step of the reference's logger, in a loop of the events of these steps."""
    records = [one for number in range(STEPS) for one in records_of(step + number * APART, folder)]
    manager, to = StandIn(), str(Path(folder) / f"reference_{step}.jsonl")
    gc.collect()
    cpu = time.process_time()
    for record in records:
        extra = record.get("extra")
        manager.log(to, record["event"], record.get("duration_sec"), extra, record["workid"], record["step"])
    spent = time.process_time() - cpu
    manager.handles[to].close()
    Path(to).unlink()
    return {"cpu_sec": spent / STEPS, "events": len(records) // STEPS}


def records_of(step, folder):
    """Return the records of events in the log of a step."""
    lines = (Path(folder) / f"run/step_{step}/worker_0.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    return [one for one in records if "workid" in one and one["event"] not in ("log_opened", "step_closed")]


def at_once(rollout, folder, pairs):
    """Return rounds of steps over an engine and requests that cost nothing."""
    prompts, order, rounds = batch(rollout, QUESTIONS), random.Random(0), []
    verl_requests.make_light(rollout, REQUESTS)
    for step in range(pairs + 1):
        manager = StandIn()
        variants = {
            "nothing": lambda step=step: timed(rollout, prompts, step),
            "instrumented": lambda step=step: instrumented(rollout, prompts, step, folder),
            "nowhere": lambda step=step: in_place(rollout, prompts, step, folder),
            "in_place": lambda step=step, log=manager.log: in_place(rollout, prompts, step, folder, log),
        }
        answers = {name: variants[name]() for name in order.sample(sorted(variants), len(variants))}
        for handle in manager.handles.values():
            handle.close()
        answers["reference"] = reference(step, folder)
        rounds += [answers] if step else []  # the first pays for imports and memory
    return rounds


def real(rollout, folder, seconds):
    """Return pairs of wall seconds of a step on the real engine, whose cache each step leaves empty."""
    prompts = batch(rollout, THREE_TURNS * (REAL_REQUESTS // len(THREE_TURNS)))
    sglang_instrument.install(log_dir=folder, experiment="run", trainers="verl")
    was_recorded = []

    def step_sec(recorded):
        was_recorded.append(recorded)
        prompts.meta_info["global_steps"] = len(was_recorded)
        began = time.perf_counter()
        rollout.generate_sequences(prompts)
        return time.perf_counter() - began

    pairs = list(neighbours(step_sec, seconds))
    sglang_instrument.flush(30)
    logged = [number for number, recorded in enumerate(was_recorded, 1) if recorded]
    steps = {int(path.name.partition("_")[2]) for path in (Path(folder) / "run").glob("step_*")}
    assert steps == set(logged), steps ^ set(logged)
    events = statistics.median(len(records_of(step, folder)) for step in logged)
    return {"pairs": pairs, "events": events, "requests": REAL_REQUESTS}


def main(engine, folder, model, amount):
    os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1")
    verl_rollout.join_group()
    user_classes.Calculator.takes_sec = user_classes.Teacher.takes_sec = 0
    if engine == "at_once":
        module.AsyncEngine = verl_requests.Engine
    rollout = verl_rollout.build(model)
    measured = (at_once if engine == "at_once" else real)(rollout, folder, amount)
    print(json.dumps(measured), flush=True)
    rollout._engine.shutdown()
    os._exit(0)


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]))
