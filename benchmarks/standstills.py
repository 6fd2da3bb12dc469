"""Let rollouts come to a standstill, and count how soon the follower names the cause: `standstills.py`.

Each case is a rollout of one or two real processes (`standing.py`) that does three to five clean steps, and
then stands still: a tool hangs, a call holds the interpreter's lock, a process is stopped, code blocks the
event loop, a worker is killed, a server is killed. A follower, as `watch` has it, follows from the begin.

A case counts if the first problem names the cause, at most 10 s after it left what was usual: a tool call or
a turn, when it had been open for longer than any that ended; all others, when they began. The exit code is 1
if fewer than 95 % of the cases count, or a problem is told in more than 1 of 1,000 clean steps.

--cases N so many of each kind, --only KIND, --jobs N so many at once, --once asks `watch --once` of the first
N of each kind for its exit code, --wrong prints what was told where it was wrong.
"""

import argparse
import json
import os
import queue
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import redirect_stdout
from dataclasses import dataclass, field
from io import StringIO
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from sglang_instrument.cli.main import main as command
from sglang_instrument.live.follower import Follower
from sglang_instrument.live.state import Problem, Snapshot

KINDS = ("tool", "lock", "stop", "loop", "kill", "server")
IN_TIME_SEC = 10.0
NAMED, FALSE = 0.95, 0.001
GIVE_UP_SEC = 60.0
LOOK_SEC = 0.1
HERE = Path(__file__).parent
#: One at a time: it takes a whole core, and the other cases would wait for theirs.
_busy = threading.Semaphore(1)
_printing = threading.Lock()


@dataclass
class Case:
    """A case, and what was seen of it.

    Attributes:
        kind, number: Which.
        steps: Clean steps that it did.
        named_sec: How long after it left the usual the cause was named; None if it never was.
        begun_sec: The same after it began.
        sentence: What was told first.
        accused: What was told in clean steps.
        code: The exit code of `watch --once`, where it was asked.
    """

    kind: str
    number: int
    steps: int = 0
    named_sec: float | None = None
    begun_sec: float | None = None
    sentence: str = ""
    accused: list[str] = field(default_factory=list)
    code: int | None = None

    @property
    def counts(self) -> bool:
        """Whether the cause was named in time."""
        return self.named_sec is not None and self.named_sec <= IN_TIME_SEC


class _Processes:
    """The processes of a case, and what they say."""

    def __init__(self, case: Case, folder: Path) -> None:
        seed = Random(f"{case.kind}/{case.number}").randrange(10**6)
        self.workers = 1 + case.number % 2
        self.said: queue.Queue[dict[str, Any]] = queue.Queue()
        server = {0: "recorded", 1: "plain"}[case.number % 2] if case.kind == "server" else ""
        self.started = []
        for rank in range(self.workers if case.kind != "server" else 1):
            arguments = {"kind": case.kind, "folder": folder, "run": f"run-{seed}", "seed": seed}
            arguments |= {"rank": rank, "workers": self.workers if case.kind != "server" else 1}
            given = [f"--{name}={value}" for name, value in arguments.items()]
            process = subprocess.Popen(
                [sys.executable, str(HERE / "standing.py"), *given, f"--server={server}"],
                env={**os.environ, "RANK": str(rank)},
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                text=True,
            )
            self.started.append(process)
            threading.Thread(target=self._read, args=(process,), daemon=True).start()
        self.server_pid: int | None = None

    def _read(self, process: subprocess.Popen[str]) -> None:
        for line in process.stdout or ():
            self.said.put(json.loads(line))

    def end(self) -> None:
        """End all of them."""
        for process in self.started:
            process.kill()
            process.wait()
        if self.server_pid is not None:
            _kill(self.server_pid, signal.SIGKILL)


def _kill(pid: int, number: int) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass


def run(case: Case, asks_once: bool) -> Case:
    """Let a rollout come to a standstill, and wait until it is named."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        processes, follower = _Processes(case, folder), Follower(folder / "case", with_done=False)
        follower.start()
        try:
            _watch(case, processes, follower)
            if asks_once:
                case.code = _exit_code(folder / "case")
        finally:
            follower.stop()
            processes.end()
    return case


def _watch(case: Case, processes: _Processes, follower: Follower) -> None:
    turns: dict[str, float] = {}
    planted: dict[str, Any] | None = None
    ends = time.time() + 10 * GIVE_UP_SEC
    while time.time() < ends:
        while not processes.said.empty():
            said = processes.said.get()
            if "turn" in said:
                turns[said["turn"]] = said["at"]
            if "server" in said:
                processes.server_pid = said["server"]
            if "planted" in said:
                planted = said
                _strike(case, processes)
                ends = time.time() + GIVE_UP_SEC
        snapshot = follower.snapshot()
        problem = next((problem for problem in snapshot.problems if problem.kind in ("hang", "death")), None)
        if planted is None:
            assert any(process.poll() is None for process in processes.started), case
            case.steps = 0 if snapshot.step is None else snapshot.step.step - 1
            if problem is not None and problem.sentence not in case.accused:
                case.accused.append(problem.sentence)
        elif problem is not None:
            case.sentence = problem.sentence
            left_at = _left_at(case, planted, problem, turns, folder_of(snapshot))
            if left_at is not None:
                case.begun_sec, case.named_sec = time.time() - planted["at"], time.time() - left_at
                return
        time.sleep(LOOK_SEC)


def folder_of(snapshot: Snapshot) -> Path:
    """Return the folder of a run."""
    return Path(snapshot.logs)


def _strike(case: Case, processes: _Processes) -> None:
    """Do from outside what the process does not do to itself."""
    if case.kind == "stop":
        os.kill(processes.started[0].pid, signal.SIGSTOP)
    if case.kind == "kill":
        processes.started[0].kill()
    if case.kind == "server" and processes.server_pid is not None:
        os.kill(processes.server_pid, signal.SIGKILL)


def _left_at(
    case: Case, planted: dict[str, Any], problem: Problem, turns: dict[str, float], logs: Path
) -> float | None:
    """Return when the cause left what was usual, if this problem names it."""
    text, planted_at = problem.sentence, float(planted["at"])
    request = str(planted.get("request"))
    if case.kind == "tool":
        is_named = f"request {request}" in text and planted["tool"] in text
        return planted_at + _longest_sec(logs, "tool_execution") if is_named else None
    if case.kind == "loop":
        return planted_at if "its event loop is blocked" in text and request in text else None
    if case.kind == "lock":
        return planted_at if "holds its interpreter's lock" in text else None
    if case.kind == "stop":
        return planted_at if "is stopped" in text else None
    if case.kind == "kill":
        return planted_at if (problem.kind, problem.role, problem.worker) == ("death", "worker", 0) else None
    if case.number % 2 == 0:  # the server is recorded
        return planted_at if (problem.kind, problem.role) == ("death", "server") else None
    named = re.search(r"request (s\d+w\d+r\d+)", text)
    if named is None or named[1] not in turns:
        return None
    return max(planted_at, turns[named[1]] + _longest_sec(logs, "turn_end"))


def _longest_sec(logs: Path, event: str) -> float:
    lines = [line for path in logs.glob("step_*/*.jsonl") for line in path.read_text().splitlines()]
    records = [
        json.loads(line) for line in lines if f'"event":"{event}"' in line and '"duration_sec"' in line
    ]
    return max((float(record["duration_sec"]) for record in records), default=0.0)


def _exit_code(logs: Path) -> int:
    with _printing, redirect_stdout(StringIO()):
        return command(["watch", str(logs), "--once"])


def run_when_free(case: Case, asks_once: bool) -> Case:
    """Run a case; one that takes a whole core, when no other such case runs."""
    if case.kind != "lock":
        return run(case, asks_once)
    with _busy:
        return run(case, asks_once)


def print_table(cases: list[Case], console: Console) -> float:
    """Print how soon each kind was named; return the share that was named in time."""
    table = Table(
        "kind",
        "cases",
        "named",
        "within 10 s",
        "median s",
        "longest s",
        "after it began, median s",
        "exit codes",
    )
    for kind in KINDS:
        of_kind = [case for case in cases if case.kind == kind]
        named = [case.named_sec for case in of_kind if case.named_sec is not None]
        begun = [case.begun_sec for case in of_kind if case.begun_sec is not None]
        codes = sorted({case.code for case in of_kind if case.code is not None})
        row = (kind, len(of_kind), len(named), sum(case.counts for case in of_kind))
        secs = (median(named), max(named), median(begun)) if named else ("", "", "")
        table.add_row(*map(str, row), *(f"{sec:.1f}" if named else "" for sec in secs), str(codes or ""))
    console.print(table)
    return sum(case.counts for case in cases) / len(cases)


def main(argv: list[str] | None = None) -> int:
    """Run the cases, print the table, and return 1 if a bound is not met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--cases", type=int, default=17, metavar="N")
    parser.add_argument("--only", default="", metavar="KIND")
    parser.add_argument("--jobs", type=int, default=4, metavar="N")
    parser.add_argument("--once", type=int, default=2, metavar="N")
    parser.add_argument("--wrong", action="store_true")
    parser.add_argument("--first", type=int, default=0, metavar="N", help="the number of the first case")
    args = parser.parse_args(argv)
    numbers = range(args.first, args.first + args.cases)
    asked = [Case(kind, number) for number in numbers for kind in KINDS if args.only in kind]
    load, begun = [os.getloadavg()[0]], time.time()
    with ThreadPoolExecutor(args.jobs) as pool:
        jobs = [pool.submit(run_when_free, case, case.number - args.first < args.once) for case in asked]
        cases = []
        for job in jobs:
            cases.append(job.result())
            load.append(os.getloadavg()[0])
            case = cases[-1]
            print(json.dumps(vars(case)), file=sys.stderr, flush=True)
    console = Console(width=130)
    share = print_table(cases, console)
    steps, accused = sum(case.steps for case in cases), sum(len(case.accused) for case in cases)
    console.print(f"named within {IN_TIME_SEC:.0f} s: {share:.1%} of {len(cases)}")
    console.print(f"told in {steps} clean steps: {accused}")
    usage = resource.getrusage(resource.RUSAGE_SELF)
    console.print(
        f"{time.time() - begun:.0f} s; load of the host {min(load):.1f} to {max(load):.1f} on "
        f"{len(os.sched_getaffinity(0))} cores; CPU of the followers {usage.ru_utime + usage.ru_stime:.0f} s"
    )
    for case in cases if args.wrong else []:
        if not case.counts or case.accused:
            console.print(f"{case.kind} {case.number}: {case.named_sec} {case.sentence!r} {case.accused}")
    return int(share < NAMED or accused > FALSE * max(steps, 1))


if __name__ == "__main__":
    sys.exit(main())
