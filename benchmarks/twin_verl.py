"""Hold twins against real rollouts in verl's server mode: on servers that stay up, both take turns by step.

    python twin_verl.py FOLDER [--steps 11] [--limits 16,4] [--servers 2]

For each limit of running requests, verl starts servers of its own behind its load balancer, and its rollout
is recorded (`verl_paced.py` says what it does). Then each gets, in turns by step, the same rollout twice, and
a twin of each record, which calls verl's servers over HTTP. The first step warms up. Prints what `twin.py`
does. Needs the environment of `tests/environments/verl_server.sh`.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))

from own_group import end_group
from twin_turns import show, take_turns

from sglang_instrument.analysis import open_run
from sglang_instrument.twin import agenda, write_agenda
from sglang_instrument.twin.playing.players import opened_players
from sglang_instrument.twin.trials.figures import figures_of

ROOT = Path(__file__).parents[1]
ENVIRONMENT, MODEL = ROOT / ".envs/verl-server/bin/python", ROOT / ".envs/verl-server-model"
RUN = "20261128T000000"
BESIDE, AGAIN = 100, 200  # are added to the numbers of the real rollout's steps beside the twin


class Verl:
    """A rollout of verl that plays a step when it is asked.

    Attributes:
        folder: Of its log, in which the steps of the record are 1 and up.
        urls: Of its servers.
    """

    def __init__(self, folder, name, limit, servers):
        sockets = Path(
            f"/tmp/v{os.getpid()}{limit}"
        )  # a short path: the length of Ray's socket paths is limited
        variables = {
            "PATH": os.environ["PATH"],
            "HOME": os.environ["HOME"],
            "PYTHONPATH": os.pathsep.join(
                map(str, [ROOT, Path(__file__).parent, ROOT / "tests/trainers/verl/shims"])
            ),
            "PYTHONWARNINGS": "ignore",
            "SGLANG_USE_CPU_ENGINE": "1",
            "TOKENIZERS_PARALLELISM": "false",
            "OMP_NUM_THREADS": "1",
            "RAY_TMPDIR": str(sockets),
            "RAY_AUTH_MODE": "disabled",
            "RAY_worker_niceness": "0",  # else Ray's processes yield to everything else on a busy machine
            "SGLANG_INSTRUMENT": "1",
            "SGLANG_INSTRUMENT_LOG_DIR": str(folder / "logs"),
            "SGLANG_INSTRUMENT_RUN_ID": RUN,
            "EXPERIMENT_NAME": name,
        }
        self.folder, self.sockets = folder / "logs" / name, sockets
        scratch = folder / name
        scratch.mkdir()
        command = [ENVIRONMENT, "-W", "ignore", Path(__file__).with_name("verl_paced.py")]
        self.process = subprocess.Popen(
            [*map(str, command), str(MODEL), str(scratch), limit, str(servers)],
            env=variables,
            cwd=scratch,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=(folder / f"{name}.errors.txt").open("w"),
            text=True,
            start_new_session=True,
        )
        self.urls = self._answer("servers")

    def _answer(self, key):
        for line in self.process.stdout:
            if line.startswith("{") and key in (answer := json.loads(line)):
                return answer[key]
        raise RuntimeError(f"verl ended: {self.folder}")

    def roll_out(self, step):
        self.process.stdin.write(f"{step}\n")
        self.process.stdin.flush()
        self._answer("done")

    def close(self):
        self.process.stdin.close()
        try:
            self.process.wait(120)
        finally:
            end_group(self.process)
            shutil.rmtree(self.sockets, ignore_errors=True)


@dataclass
class Beside:
    """The real rollout once more, with other numbers of its steps."""

    verl: Verl
    first: int

    def play(self, number, place):
        self.verl.roll_out(self.first + place + 1)


@contextmanager
def started(folder, limit, servers):
    verl = Verl(folder, f"verl-{limit}", limit, servers)
    try:
        yield verl
    finally:
        verl.close()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--steps", type=int, default=11)
    parser.add_argument("--limits", default="16,4")
    parser.add_argument("--servers", type=int, default=2)
    options = parser.parse_args()
    folder, limits = options.folder.absolute(), options.limits.split(",")
    folder.mkdir(parents=True)
    recorded = range(1, options.steps + 1)
    with ExitStack() as stack:
        rollouts = {limit: stack.enter_context(started(folder, limit, options.servers)) for limit in limits}
        for limit, rollout in rollouts.items():
            for step in recorded:
                rollout.roll_out(step)
            planned = agenda(open_run(rollout.folder, cached=False), steps=recorded)
            counted = write_agenda(planned, folder / f"{limit}.jsonl")
            print(f"verl-{limit}", counted, planned.missing, flush=True)
        runs = {}
        for limit, rollout in rollouts.items():
            runs[limit, "real"], runs[limit, "again"] = Beside(rollout, BESIDE), Beside(rollout, AGAIN)
            for source in limits:
                name = f"logs/twin-{source}-{limit}"
                opened = opened_players(
                    rollout.urls, folder / f"{source}.jsonl", folder / name, RUN, None, None, 3600.0
                )
                runs[limit, source] = stack.enter_context(opened)
        take_turns(runs, options.steps)
    figures, records = {}, {}
    for (limit, source), run in runs.items():
        if isinstance(run, Beside):
            of_steps = figures_of(open_run(run.verl.folder, cached=False))
            numbers = {step - run.first: step for step in of_steps if 0 < step - run.first < BESIDE}
            figures[limit, source] = {number: of_steps[step] for number, step in numbers.items()}
            records[limit] = {step: of_steps[step] for step in of_steps if step < BESIDE}
        else:
            (run.folder / "engine").mkdir()
            for path in (folder / f"logs/verl-{limit}/engine").glob("*.jsonl"):
                (run.folder / "engine" / path.name).symlink_to(path)
            figures[limit, source] = figures_of(open_run(run.folder, cached=False))
    show(limits, figures, records)


if __name__ == "__main__":
    main()
