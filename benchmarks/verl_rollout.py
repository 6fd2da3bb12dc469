"""Measure verl's own rollout with and without recording, in pairs, in verl's environment.

Each command prints one line of JSON:
python verl_rollout.py at_once FOLDER MODEL PAIRS: CPU time, with an engine and requests that cost nothing;
python verl_rollout.py real FOLDER MODEL SECONDS: wall time, with the real engine and requests.
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
from sglang_instrument.schema import CONTROL_EVENTS

REQUESTS = 256
REAL_REQUESTS = 32  # of a step on the real engine; a step of 256 is as noisy and takes eight times as long
STEPS = 2  # measured at a time, where the engine costs nothing
THREE_TURNS = [QUESTIONS[1], QUESTIONS[3]]  # the model was trained to answer them in three turns
WARM_UP = 1_000_000  # added to the numbers of steps that are not measured
APART = 1_000  # between the numbers of measured steps


def timed(rollout, prompts, step):
    """Return the CPU seconds per step, of all threads, until all records are written.

    The first step is not measured: in it threads start, files are opened, and new code warms up.
    """
    prompts.meta_info["global_steps"] = step + WARM_UP
    rollout.generate_sequences(prompts)
    sglang_instrument.flush(30)
    gc.collect()
    cpu = time.process_time()
    for number in range(STEPS):
        prompts.meta_info["global_steps"] = step + number * APART
        rollout.generate_sequences(prompts)
    sglang_instrument.flush(30)  # what our threads encode and write later counts, too
    return {"cpu_sec": (time.process_time() - cpu) / STEPS}


def instrumented(rollout, prompts, step, folder):
    sglang_instrument.install(log_dir=folder, experiment="run", trainers="verl")
    try:
        return timed(rollout, prompts, step)
    finally:
        sglang_instrument.uninstall()


class InPlace:
    """A replacement of our buffer that logs each event at its end, as the reference's fork does.

    With `log` it calls the reference's logger, without it does nothing. The difference is the logger's cost
    inside verl's own work, with caches as cold as for our code.
    """

    def __init__(self, path, log):
        self._path, self._log = path, log

    def append(self, span):
        """Take an event in the form that the fork's code has: a dict of fields, and a duration."""
        context = span.context
        extra = {**(context.extra or {}), **(span.extra or {})}
        duration = (span.end - span.start) / 1e9 if span.end else None
        if self._log is not None:
            self._log(self._path, span.event, duration, extra, context.worker, context.step)


def in_place(rollout, prompts, step, folder, log=None):
    """Measure steps whose events are logged by the reference's logger, or dropped, at their ends."""
    sglang_instrument.install(log_dir=folder, experiment="in_place", trainers="verl")
    path = str(Path(folder) / f"in_place_{step}.jsonl")
    spans.use_buffer(InPlace(path, log))
    try:
        return timed(rollout, prompts, step)
    finally:
        sglang_instrument.uninstall()
        Path(path).unlink(missing_ok=True)


def reference(step, folder):
    """Return the CPU seconds per step of the reference's logger, in a loop over the events of these steps."""
    records = [record for number in range(STEPS) for record in records_of(step + number * APART, folder)]
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
    return [record for record in records if "workid" in record and record["event"] not in CONTROL_EVENTS]


def at_once(rollout, folder, pairs):
    """Return rounds of steps with an engine and requests that cost nothing."""
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
        rounds += [answers] if step else []  # the first one includes imports and memory allocation
    return rounds


def real(rollout, folder, seconds):
    """Return pairs of wall seconds of a step on the real engine; each step empties the engine's cache."""
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
