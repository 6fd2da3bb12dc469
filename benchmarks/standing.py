"""A rollout that comes to a standstill: `standstills.py` starts it, and tells which way.

It does a few clean steps, and in the next one stands still in the middle of a request. On stdout it says, one
JSON object a line, when each turn begins and when it stands still.
"""

import argparse
import asyncio
import http.server
import json
import os
import re
import subprocess
import sys
import time
import urllib.request
from pathlib import Path
from random import Random

import sglang_instrument
from sglang_instrument import bind, span, step

TOOLS = ("search", "python")
FOR_EVER_SEC = 3600.0
RETRY_SEC = 0.5


class Rollout:
    """What one worker does."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.kind, self.folder = args.kind, Path(args.folder)
        self.rank, self.workers = args.rank, args.workers
        self.random = Random(f"{args.seed}/{args.rank}")
        shape = Random(args.seed)  # the same for all ranks
        self.clean_steps = shape.randint(3, 5)
        self.engine_sec = shape.choice([0.1, 0.2, 0.4])
        self.tool_sec = shape.choice([0.05, 0.2, 0.6])
        self.in_thread = shape.random() < 0.5
        self.requests = shape.randint(4, 10)
        self.server = _Server(args) if args.server else None
        self.planted: tuple[int, int] | None = None

    def run(self) -> None:
        """Do the clean steps, and the one that never ends."""
        for number in range(1, self.clean_steps + 2):
            is_last = number > self.clean_steps
            if is_last and self.rank == 0:
                turn = (
                    1 if self.kind == "tool" else self.random.randint(1, 2)
                )  # each calls a tool in its first
                self.planted = self.random.randrange(self.requests), turn
            with step(number), span("total_step_duration"):
                asyncio.run(self._step(number))
                with span("barrier_wait_duration"):
                    self._barrier(number)
            time.sleep(0.2)

    async def _step(self, number: int) -> None:
        await asyncio.gather(*(self._request(number, place) for place in range(self.requests)))

    async def _request(self, number: int, place: int) -> None:
        name = f"s{number}w{self.rank}r{place}"
        await asyncio.sleep(self.random.random() * 0.5)
        turns = self.random.randint(2, 3)
        with bind(request_id=name), span("async_rollout_request_complete"):
            for turn in range(turns):
                say(turn=name)
                with bind(turn=turn), span("turn_end"):
                    stands = self.planted == (place, turn + 1)
                    with span("turn_engine_call"):
                        await self._generate(stands)
                    if turn < turns - 1:
                        await self._call_tool(name, stands)
            with span("reward_calculation"):
                self._score(name, self.planted is not None and self.planted[0] == place)

    async def _generate(self, stands: bool) -> None:
        if stands and self.kind in ("stop", "kill", "server"):
            say(planted=self.kind)
        if self.server:
            await asyncio.to_thread(self.server.generate, self._sec(self.engine_sec))
        else:
            await asyncio.sleep(self._sec(self.engine_sec))

    async def _call_tool(self, name: str, stands: bool) -> None:
        tool = self.random.choice(TOOLS)
        with span("tool_execution", tool=tool):
            if stands and self.kind == "tool":
                say(planted=self.kind, request=name, tool=tool)
                if self.in_thread:
                    await asyncio.to_thread(time.sleep, FOR_EVER_SEC)
                await asyncio.sleep(FOR_EVER_SEC)
            await asyncio.sleep(self._sec(self.tool_sec))

    def _score(self, name: str, stands: bool) -> None:
        if stands and self.kind in ("lock", "loop"):
            say(planted=self.kind, request=name)
            if self.kind == "loop":
                time.sleep(FOR_EVER_SEC)
            re.match(r"(a+)+$", "a" * 60 + "b")

    def _sec(self, usual_sec: float) -> float:
        return usual_sec * self.random.uniform(0.5, 2.0)

    def _barrier(self, number: int) -> None:
        (self.folder / f"at_barrier_{number}_{self.rank}").touch()
        while not all((self.folder / f"at_barrier_{number}_{rank}").exists() for rank in range(self.workers)):
            time.sleep(0.02)


class _Server:
    """A server in a process of its own, and its client, which tries again until it gets an answer."""

    def __init__(self, args: argparse.Namespace) -> None:
        command = [
            sys.executable,
            __file__,
            "--serve",
            args.server,
            "--folder",
            args.folder,
            "--run",
            args.run,
        ]
        # Without our variables: with them, it would be recorded in any case, and as a worker.
        ours = [name for name in os.environ if name.startswith("SGLANG_INSTRUMENT")]
        alone = {name: value for name, value in os.environ.items() if name not in ours}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=alone)
        assert process.stdout is not None
        self.port = int(process.stdout.readline())
        say(server=process.pid)

    def generate(self, sec: float) -> None:
        while True:
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{self.port}/{sec}").read()
                return
            except (OSError, http.client.HTTPException):
                time.sleep(RETRY_SEC)


class _Answers(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        with span("engine_request"):
            time.sleep(float(self.path[1:]))
        self.send_response(200)
        self.end_headers()

    def log_message(self, *_: object) -> None:
        pass


def serve(args: argparse.Namespace) -> None:
    """Serve until killed; say the port."""
    if args.serve == "recorded":
        sglang_instrument.install(role="server", experiment="case", log_dir=args.folder, run_id=args.run)
        with span("server_start"):
            pass
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Answers)
    print(server.server_port, flush=True)
    server.serve_forever()


def say(**what: object) -> None:
    print(json.dumps({**what, "at": time.time()}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--serve")
    parser.add_argument("--kind")
    parser.add_argument("--folder")
    parser.add_argument("--run")
    parser.add_argument("--seed", type=int)
    parser.add_argument("--rank", type=int)
    parser.add_argument("--workers", type=int)
    parser.add_argument("--server", default="")
    args = parser.parse_args()
    if args.serve:
        serve(args)
        return
    sglang_instrument.install(experiment="case", log_dir=args.folder, run_id=args.run)
    Rollout(args).run()


if __name__ == "__main__":
    main()
