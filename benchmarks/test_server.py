"""What SGLang's server gives with its processes recorded, against without: in turn until that is sharp.

So many requests are always under way: who got an answer asks again. One server is measured with and without,
some seconds each, in fours: with, without, without, with, or the other way round, so that a machine that gets
slower slows both alike.
"""

import asyncio
import math
import os
import random
import statistics
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from rounds import middle, save, table

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from sglang_server import start_server

SECONDS = float(os.environ.get("BENCH_SERVER_SECONDS", "900"))
#: What is compared with "off": "on"; "off", which has to give 1; "slowed", which has to give 0.97.
STATE = os.environ.get("BENCH_SERVER_STATE", "on")
WIDTH = 0.02  # of the 95 % interval of the ratio of throughputs: at most
SHARP = 0.012  # enough, before the time is over. When it ends does not depend on what was found.
LEAST = {"requests": 0.98, "batches": 0.96}  # lower bound of the interval
REQUESTS = 64  # at once
TOKENS = range(8, 25)  # of an answer: not all of them end at once
FEWEST = 20  # fours
WARM_SEC = 10.0
SETTLING_SEC = 0.75  # after a switch: requests that began before it end, and what they left is written
SECTION_SEC = 2.0
PROCESSES = 3  # HTTP and tokenizer, scheduler, detokenizer
SWITCHED = Path(__file__).parent / "switched"


class Clients:
    """Ask a server for answers, so many at once, for as long as the block runs."""

    def __init__(self, port):
        self.tokens = 0  # of all answers so far
        self._url = f"http://127.0.0.1:{port}/generate"
        self._numbers = random.Random(0)

    async def __aenter__(self):
        import aiohttp

        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        self._tasks = [asyncio.create_task(self._ask_on()) for _ in range(REQUESTS)]
        return self

    async def __aexit__(self, *exception):
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._session.close()

    def check(self):
        """Raise what made one of them give up."""
        for task in self._tasks:
            if task.done():
                task.result()

    async def _ask_on(self):
        while True:
            first = self._numbers.randrange(300, 400)
            sampling = {"max_new_tokens": self._numbers.choice(TOKENS), "temperature": 0, "ignore_eos": True}
            body = {"input_ids": list(range(first, first + 8)), "sampling_params": sampling}
            async with self._session.post(self._url, json=body) as reply:
                assert reply.status == 200
                self.tokens += (await reply.json())["meta_info"]["completion_tokens"]


class Switched:
    """A server whose processes take the instrumentation out and put it back when they are asked."""

    def __init__(self, folder, detail):
        self._asked, self._times = folder / "switch", 0
        self._asked.write_text("on")
        settings = {
            "SGLANG_INSTRUMENT": "1",
            "SGLANG_INSTRUMENT_LOG_DIR": str(folder / "logs"),
            "SGLANG_INSTRUMENT_ENGINE_DETAIL": detail,
            "BENCH_SWITCHED": str(folder),
            "PYTHONPATH": os.pathsep.join(filter(None, (str(SWITCHED), os.environ.get("PYTHONPATH")))),
        }
        # A server that nobody asks would spin, and take a processor from those who ask this one.
        arguments = ("--sleep-on-idle", "--max-running-requests=64", "--max-total-tokens=4096")
        self._server = start_server(folder, settings, *arguments)
        self.stop, self.port = self._server.stop, self._server.port
        names = self._server.children().items()
        self._pids = [self._server.process.pid, *(pid for pid, name in names if "sglang::" in name)]
        assert len(self._pids) == PROCESSES
        self.logs = folder / "logs"

    async def switch(self, state):
        """Have all processes do it."""
        self._times += 1
        asked = f"{self._times} {state}"
        new = self._asked.with_name("new")
        new.write_text(asked)
        new.replace(self._asked)
        until = time.monotonic() + 60
        for pid in self._pids:
            done = self._asked.with_name(f"switch.{pid}")
            while not done.exists() or done.read_text() != asked:
                assert time.monotonic() < until, f"process {pid} did not switch {state}"
                await asyncio.sleep(0.02)

    def logged_bytes(self):
        """Return how much is logged so far."""
        return sum(path.stat().st_size for path in self.logs.rglob("engine/*.jsonl"))

    def cpu_sec(self):
        """Return the CPU time of its processes."""
        import psutil

        times = [psutil.Process(pid).cpu_times() for pid in self._pids]
        return sum(time.user + time.system for time in times)

    async def section(self, state, clients):
        """Return tokens a second, and CPU seconds a token, of some seconds."""
        await self.switch(state)
        await asyncio.sleep(SETTLING_SEC)
        tokens, cpu, logged, begun = clients.tokens, self.cpu_sec(), self.logged_bytes(), time.perf_counter()
        await asyncio.sleep(SECTION_SEC)
        tokens, took_sec = clients.tokens - tokens, time.perf_counter() - begun
        clients.check()
        bytes_per_token = (self.logged_bytes() - logged) / tokens
        assert (bytes_per_token > 10) == (state == "on")  # a last request of the section before may be late
        return {"tokens_per_sec": tokens / took_sec, "cpu_per_token": (self.cpu_sec() - cpu) / tokens}


def ratio(four, key):
    """Return by how much the logarithms of one state differ from those of the other."""
    means = {place: statistics.mean(math.log(section[key]) for section in four[place]) for place in four}
    return means["with"] - means["without"]


async def measure(server, rounds):
    """Append fours to `rounds` until they are sharp, or the time is over."""
    order = random.Random(0)
    states = {"with": STATE, "without": "off"}
    until = time.monotonic() + SECONDS
    async with Clients(server.port) as clients:
        await asyncio.sleep(WARM_SEC)
        while time.monotonic() < until:
            first, other = order.sample(list(states), 2)
            four = {"with": [], "without": []}
            for place in (first, other, other, first):
                four[place].append(await server.section(states[place], clients))
            rounds.append(four)
            if len(rounds) >= FEWEST and len(rounds) % 10 == 0:
                _, low, high = middle([ratio(one, "tokens_per_sec") for one in rounds])
                if high - low <= SHARP:
                    return


@pytest.mark.parametrize("detail", LEAST)
def test_a_server_gives_as_much_with_its_processes_recorded(show, tmp_path, detail):
    rounds = []
    with ExitStack() as stack:
        server = Switched(tmp_path, detail)
        stack.callback(server.stop)
        asyncio.run(measure(server, rounds))
    given, low, high = map(math.exp, middle([ratio(four, "tokens_per_sec") for four in rounds]))
    cpu, cpu_low, cpu_high = map(math.exp, middle([ratio(four, "cpu_per_token") for four in rounds]))
    without = statistics.median(one["tokens_per_sec"] for four in rounds for one in four["without"])
    answer = (f"{given:.3f}", f"{low:.3f} .. {high:.3f}", LEAST[detail])
    rows = [(detail, f"{without:.0f}", len(rounds), *answer, f"{cpu:.3f} ({cpu_low:.3f} .. {cpu_high:.3f})")]
    columns = ("engine_detail", "tokens/s off", "fours", STATE, "95 % interval", "bound", "CPU a token")
    show(table(f"a real server, {REQUESTS} requests at once, recorded against not", columns, rows))
    save(f"server-{detail}" if STATE == "on" else f"server-{detail}-{STATE}", rows, rounds=rounds)
    assert high - low <= WIDTH
    assert low >= LEAST[detail]
