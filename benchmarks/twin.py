"""Hold twins against real rollouts: on servers that stay up, record and twins take turns by step.

    python twin.py FOLDER [--steps 11] [--limits 16,4] [--options="--disable-radix-cache"]
                          [--servers 2 [--router cache_aware]] [--enough 4] [--long 16]

First a rollout is recorded at each limit of running requests, each with servers of its own; without a router,
groups go to them in turn. With `--enough`, workers abort what is left once so many of their 6 groups are
done; with `--long`, first prompts are so many times as long (114 tokens in the median). Then each server
gets, in turns by step, the same rollout twice more, and a twin of each record: so other load on the machine
affects all of them alike. The first step warms up. Prints how many steps of each twin, and of the rollout
itself once more, lie within 10 % of the real one, and what differs. `--router` needs `sglang_router` on
PYTHONPATH.
"""

import argparse
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from sglang_server import ARGUMENTS, IN_TURN, instrumented, model_of_the_demo
from twin_turns import show, take_turns

from sglang_instrument.analysis import open_run
from sglang_instrument.demo.cpu_platform import write_plugin
from sglang_instrument.twin import agenda, write_agenda
from sglang_instrument.twin.playing.players import opened_players
from sglang_instrument.twin.servers.launches import launched
from sglang_instrument.twin.trials.figures import figures_of

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
    environment["SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN"] = "1"  # the demo's model knows 2,048 positions
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
    parser.add_argument("--long", default="1")
    options = parser.parse_args()
    folder, limits = options.folder.absolute(), options.limits.split(",")
    folder.mkdir(parents=True)
    os.environ |= {"ENOUGH": options.enough, "LONG": options.long}  # of the real rollouts
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
            for name in ("real", "again"):
                rollout = RealRollout(folder, f"{name}-{limit}", options.steps, urls, RUN)
                stack.callback(rollout.close)
                runs[limit, name] = rollout
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
        take_turns(runs, options.steps)
    for (limit, _), run in runs.items():
        link_engine(folder, run.folder.name, limit)
    figures = {key: figures_of(open_run(run.folder, cached=False)) for key, run in runs.items()}
    records = {limit: figures_of(open_run(folder / f"logs/record-{limit}", cached=False)) for limit in limits}
    show(limits, figures, records)


if __name__ == "__main__":
    main()
