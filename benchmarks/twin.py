"""Hold twins against real rollouts: on servers that stay up, record and twins take turns by step.

    python twin.py FOLDER [--steps 11] [--limits 16,4] [--options "--disable-radix-cache"]
                          [--servers 2 [--router cache_aware]] [--enough 4]

First a rollout is recorded at each limit of running requests, each with servers of its own; without a router,
groups go to them in turn. With `--enough`, workers abort what is left once so many of their 6 groups are
done. Then each server gets, in turns by step, the same rollout once more, and a twin of each record: so other
load on the machine affects all of them alike. The first step warms up. Prints how many steps of each twin lie
within 10 % of the real one, and what differs. `--router` needs `sglang_router` on PYTHONPATH.
"""

import argparse
import json
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from sglang_server import ARGUMENTS, IN_TURN, instrumented, model_of_the_demo

from sglang_instrument.analysis import open_run
from sglang_instrument.demo.cpu_platform import write_plugin
from sglang_instrument.twin import agenda, write_agenda
from sglang_instrument.twin.playing.players import opened_players
from sglang_instrument.twin.servers.launches import launched
from sglang_instrument.twin.trials.figures import figures_of
from sglang_instrument.twin.trials.validity import interval_of

SUPPORT = Path(__file__).parents[1] / "tests" / "support"
OPTIONS = (
    "--context-length=2048",
    "--max-total-tokens=65536",
    "--chunked-prefill-size=2048",
    "--enable-metrics",
)
CLIENT = 24  # requests that a worker has open at most: all of a step
RUN = "20261127T000000"


class RealRollout:
    """A rollout that plays a step when it is asked."""

    def __init__(self, folder, name, steps, urls, run_id):
        command = [sys.executable, SUPPORT / "closed_loop.py", name, folder / "logs", steps, CLIENT]
        command += [folder / f"{name}.plan.json", *urls]
        environment = {**os.environ, "PACE": "paced", "SGLANG_INSTRUMENT_RUN_ID": run_id}
        self.folder = folder / "logs" / name
        self.process = subprocess.Popen(
            [*map(str, command)],
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(folder / f"{name}.errors.txt").open("w"),
            text=True,
        )

    def play(self, number, place):
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        assert self.process.stdout.readline().startswith("done")

    def close(self):
        self.process.stdin.close()
        self.process.wait(60)


def start(folder, limit, options):
    """Return a context with the addresses of the servers of a limit, or of the router before them."""
    scratch = folder / f"server_{limit}"
    scratch.mkdir()
    write_plugin(scratch)
    path = os.pathsep.join(filter(None, (str(scratch), os.environ.get("PYTHONPATH"))))
    environment = {**instrumented(folder, SGLANG_INSTRUMENT_RUN_ID=RUN), "PYTHONPATH": path}
    environment |= {"EXPERIMENT_NAME": f"engine-{limit}", "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", "-m", "sglang.launch_server"]
    command += ["--model-path", str(model_of_the_demo()), *ARGUMENTS, IN_TURN, *OPTIONS]
    command += [f"--max-running-requests={limit}", *options.options.split()]
    return launched(command, options.servers, environment, scratch / "printed", router=options.router)


def link_engine(folder, name, limit):
    """Let a run have the log of its server."""
    engine = folder / "logs" / name / "engine"
    engine.mkdir(parents=True)
    for path in (folder / "logs" / f"engine-{limit}" / "engine").glob("*.jsonl"):
        (engine / path.name).symlink_to(path)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=11)
    parser.add_argument("--limits", default="16,4")
    parser.add_argument("--options", default="")
    parser.add_argument("--servers", type=int, default=1)
    parser.add_argument("--router")
    parser.add_argument("--enough", default="0")
    options = parser.parse_args()
    folder, limits = options.folder.absolute(), options.limits.split(",")
    folder.mkdir(parents=True)
    os.environ["ENOUGH"] = options.enough  # of the real rollouts
    with ExitStack() as stack:
        servers = {limit: stack.enter_context(start(folder, limit, options)) for limit in limits}
        for limit, urls in servers.items():
            rollout = RealRollout(folder, f"record-{limit}", options.steps, urls, RUN)
            for place in range(options.steps):
                rollout.play(1, place)
            rollout.close()
            link_engine(folder, rollout.folder.name, limit)
            planned = agenda(open_run(rollout.folder, cached=False))
            print(
                f"record-{limit}",
                write_agenda(planned, folder / f"{limit}.jsonl"),
                planned.missing,
                flush=True,
            )
        runs = {}
        for limit, urls in servers.items():
            name = f"real-{limit}"
            rollout = RealRollout(folder, name, options.steps, urls, RUN)
            stack.callback(rollout.close)
            runs[limit, "real"] = rollout
            for source in limits:
                opened = opened_players(
                    urls,
                    folder / f"{source}.jsonl",
                    folder / f"logs/twin-{source}-{limit}",
                    RUN,
                    None,
                    None,
                    3600.0,
                )
                runs[limit, source] = stack.enter_context(opened)
        for place in range(options.steps):
            order = list(runs.values())[place % len(runs) :] + list(runs.values())[: place % len(runs)]
            for run in order if place % 2 else order[::-1]:
                run.play(1, place)
            print("step", place + 1, flush=True)
    for (limit, _), run in runs.items():
        link_engine(folder, run.folder.name, limit)
    show(folder, limits, runs)


def show(folder, limits, runs):
    figures = {key: figures_of(open_run(run.folder, cached=False)) for key, run in runs.items()}
    records = {limit: figures_of(open_run(folder / f"logs/record-{limit}", cached=False)) for limit in limits}
    lines = []
    for limit in limits:
        real = figures[limit, "real"]
        for source in ["record", *limits]:
            other = records[limit] if source == "record" else figures[limit, source]
            steps = sorted(set(real) & set(other))[1:]
            ratios = [other[step].rollout_sec / real[step].rollout_sec for step in steps]
            mean, low, high = interval_of(ratios)
            lines.append(
                {
                    "on": limit,
                    "from": source,
                    "steps": len(steps),
                    "ratio": round(mean, 3),
                    "interval": [round(low, 3), round(high, 3)],
                    "range": [round(min(ratios), 3), round(max(ratios), 3)],
                    "within_10": sum(abs(ratio - 1) <= 0.1 for ratio in ratios),
                    "p99_within_10": sum(abs(other[s].p99_sec / real[s].p99_sec - 1) <= 0.1 for s in steps),
                    "lengths_equal": all(
                        (other[s].calls, other[s].prompt_tokens, other[s].generated_tokens)
                        == (real[s].calls, real[s].prompt_tokens, real[s].generated_tokens)
                        for s in steps
                    ),
                    "cached_within_5": sum(
                        abs(other[s].cached_tokens - real[s].cached_tokens)
                        <= 0.05 * max(1, real[s].cached_tokens)
                        for s in steps
                    ),
                    "queue_sec": [round(fmean(f[s].queue_sec or 0 for s in steps), 3) for f in (real, other)],
                    "seconds": [round(fmean(f[s].rollout_sec for s in steps), 2) for f in (real, other)],
                }
            )
            print(json.dumps(lines[-1]))
    first, *others = limits
    for kind in ("real", *limits):
        for limit in others:
            steps = sorted(set(figures[first, kind]) & set(figures[limit, kind]))[1:]
            effect = [
                figures[limit, kind][s].rollout_sec / figures[first, kind][s].rollout_sec for s in steps
            ]
            print(
                json.dumps({"effect": f"{limit} against {first}", "by": kind, "ratio": interval_of(effect)})
            )


if __name__ == "__main__":
    main()
