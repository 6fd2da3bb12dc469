"""Plant causes from outside into rollouts on the real SGLang engine, and count what the verdict says first.

`python real_plants.py` runs the demo with two workers, an engine each, once without a plant and once with
each: a scheduler that is stopped or runs at the lowest priority beside other work, a lock, the interpreter's
lock, a regular expression, a late start, a small key-value cache, a running limit of 1, a slow tool, a pool
of one place, a worker that is killed. What a plant costs is measured against the run without. `--only
NAME,NAME` runs those whose names contain one of them. `--keep DIR` keeps the logs; those that are there are
judged again. The exit code is 1 if fewer than 10 in 12 are named first, or if the run without a plant accuses
somebody. The machine must be quiet: steps take some seconds.

The twelfth, a network delay, needs servers, which the demo has not: it is not planted here.
"""

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from planted_worker import STEP, WORKER
from world_recall import accuses, in_words, server_of

from sglang_instrument.analysis import open_run, step_table
from sglang_instrument.analysis.verdict.verdict import findings_of
from sglang_instrument.demo import launch
from sglang_instrument.demo.options import DemoOptions
from sglang_instrument.demo.show import ensure_model

HERE = Path(__file__).parent
STEPS, REQUESTS, TOKENS = 6, 80, 640
STOPPED_SEC, BEGUN_SEC = 10.0, 0.4
#: The causes that say what a plant is, and whether its step has to be named.
RIGHT = {
    "stopped scheduler": ({"standstill", "engine", "slow-server"}, True),
    "niced scheduler": ({"engine", "slow-server", "shift", "slow-calls"}, False),
    "lock": ({"blocked-loop"}, True),
    "interpreter lock": ({"blocked-loop"}, True),
    "regex": ({"blocked-loop"}, True),
    "late start": ({"late-start"}, True),
    "small key-value cache": ({"retraction", "queue", "engine", "slow-server"}, False),
    "running limit of 1": ({"queue", "engine"}, False),
    "slow tool": ({"tool", "slow-calls"}, True),
    "pool of 1": ({"tool", "shift", "slow-calls"}, False),
    "killed worker": ({"death"}, False),  # a second after the step began, which may be in the next
}


def children_of(pid):
    """Return the processes that a process started, and those that these did."""
    with subprocess.Popen(
        ["ps", "-o", "pid=", "--ppid", str(pid)], stdout=subprocess.PIPE, text=True
    ) as asked:
        pids = [int(line) for line in asked.stdout if int(line) != asked.pid]
    return [child for other in pids for child in (other, *children_of(other))]


def command_of(pid):
    """Return the command line of a process, or its title."""
    try:
        return Path("/proc", str(pid), "cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def worker_pid():
    """Return the process of the worker with the plant."""
    mine = f'"rank": {WORKER},'
    return next(pid for pid in children_of(os.getpid()) if mine in command_of(pid))


def scheduler_pid():
    """Return the process of its scheduler."""
    return next(pid for pid in children_of(worker_pid()) if "sglang::scheduler" in command_of(pid))


def _schedule_as_usual(task):
    """Take real-time priority from a task: these plants may run with it beside other work."""
    os.sched_setscheduler(task, os.SCHED_OTHER, os.sched_param(0))


class FromOutside:
    """What is done to the processes of a run, when its steps begin."""

    def __init__(self, plant):
        self._plant, self._beside = plant, []

    def step_begins(self, step):
        """Do it."""
        if step != STEP:
            return
        if self._plant == "stopped scheduler":
            pid = scheduler_pid()
            # Its requests have begun by then; before, only the flush of its cache would wait.
            threading.Timer(BEGUN_SEC, os.kill, (pid, signal.SIGSTOP)).start()
            threading.Timer(BEGUN_SEC + STOPPED_SEC, os.kill, (pid, signal.SIGCONT)).start()
        elif self._plant == "killed worker":
            threading.Timer(BEGUN_SEC, os.kill, (worker_pid(), signal.SIGKILL)).start()
        elif self._plant == "niced scheduler":
            self._crowd(scheduler_pid())

    def _crowd(self, pid):
        """Let a scheduler run on one core beside a busy process, at the lowest priority."""
        core = {max(os.sched_getaffinity(0))}
        for task in Path("/proc", str(pid), "task").iterdir():
            os.sched_setaffinity(int(task.name), core)
            _schedule_as_usual(int(task.name))
            os.setpriority(os.PRIO_PROCESS, int(task.name), 19)
        busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
        os.sched_setaffinity(busy.pid, core)
        _schedule_as_usual(busy.pid)
        self._beside.append(busy)

    def end(self):
        """End what was started beside the run."""
        for process in self._beside:
            process.kill()
            process.wait()


def run_plant(plant, folder, model):
    """Run the demo with a plant, unless its log is there; return the folder of its log."""
    if (folder / "run").is_dir():
        return folder / "run"
    os.environ.update(EXPERIMENT_NAME="run", SGLANG_INSTRUMENT_LOG_DIR=str(folder))
    launch._COMMAND = (sys.executable, "-W", "ignore", str(HERE / "planted_worker.py"), plant)
    options = DemoOptions(steps=STEPS, requests=REQUESTS, max_tokens=TOKENS, give_up_sec=180.0)
    outside = FromOutside(plant)
    scratch = Path(tempfile.mkdtemp(dir=folder))
    try:
        for rank, report in launch.run_workers(
            options, model=model, scratch=scratch, outputs=folder / "output"
        ):
            if rank == WORKER and report["event"] == "step":
                outside.step_begins(report["step"] + 1)
    except launch.DemoError as error:
        if plant != "killed worker":
            raise
        print(f"    {error}"[:150])
    finally:
        outside.end()
    return folder / "run"


def is_right(plant, finding):
    """Return whether a finding says what was planted, and where."""
    causes, is_of_step = RIGHT[plant]
    # Each worker has a server of its own, of the same number.
    if finding.cause == "slow-calls" and finding.event != ("engine" if "scheduler" in plant else "tool"):
        return False
    if finding.cause not in causes or WORKER not in (finding.worker, server_of(finding)):
        return False
    return (
        finding.step == STEP if is_of_step else finding.step is None or finding.step >= STEP or "of" in plant
    )


def main():
    """Run the plants, and print what was said."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--only", default="")
    parser.add_argument("--keep", type=Path)
    args = parser.parse_args()
    model = ensure_model(
        Path(os.environ.get("SGLANG_INSTRUMENT_MODEL_DIR", Path.home() / ".cache/sglang-instrument"))
    )
    whole = args.keep or Path(tempfile.mkdtemp())
    right, usual, accused = [], {}, 0
    plants = [plant for plant in RIGHT if any(name in plant for name in args.only.split(","))]
    for plant in ["nothing", *plants]:
        folder = whole / plant.replace(" ", "_")
        folder.mkdir(parents=True, exist_ok=True)
        begun = time.monotonic()
        run = open_run(run_plant(plant, folder, model), cached=False)
        findings = findings_of(run, over=True)
        seconds = dict(step_table(run.digest).select("step", "duration_sec").drop_nulls().iter_rows())
        usual = usual or seconds
        words = [in_words(finding) for finding in findings[:3]]
        cost = seconds.get(STEP, 0.0) - usual.get(STEP, 0.0)
        if plant == "nothing":
            accused = sum(map(accuses, findings))
        else:
            right.append(bool(findings) and is_right(plant, findings[0]))
        steps = " ".join(f"{sec:.1f}" for sec in seconds.values())
        print(f"{plant}: {'-' if plant == 'nothing' else right[-1]}, {cost:+.1f} s, steps {steps}: {words}")
        for finding in findings[:1]:
            print(f"    {finding.sentence}; {time.monotonic() - begun:.0f} s in all", flush=True)
    print(f"named first: {sum(right)} of {len(right)}; without a plant, findings that accuse: {accused}")
    return int(accused > 0 or sum(right) < 10 / 12 * len(right))


if __name__ == "__main__":
    sys.exit(main())
