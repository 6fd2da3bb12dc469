"""Measure the throughput of SGLang's server with and without recording, until the ratio is precise enough.

One server answers the same concurrent requests again and again, with its processes recorded and without: two
bursts of a second or two, one directly after the other, in random order. Other load on the machine changes
its speed for seconds, and so affects both bursts alike.
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

SECONDS = float(os.environ.get("BENCH_SERVER_SECONDS", "2700"))
#: The state to compare with "off": "on"; "off", which must give 1; "slowed", which must give clearly less.
STATE = os.environ.get("BENCH_SERVER_STATE", "on")
#: The state that it is compared with: "off"; "ungauged", on but for the gauges, with "requests" only.
AGAINST = os.environ.get("BENCH_SERVER_AGAINST", "off")
WIDTH = 0.02  # largest width of the 95 % interval of the ratio of throughputs
SHARP = 0.018  # stop at this width; the decision to stop does not depend on the ratio
LEAST = {"requests": 0.98, "batches": 0.96}  # lower bound of the interval
REQUESTS = 64  # at once
IN_A_BURST = 192  # so that the concurrency is constant for most of the burst
#: Tokens of an answer, the fewest and the most; different, so that requests do not all end together.
FEWEST_TOKENS, MOST_TOKENS = map(int, os.environ.get("BENCH_SERVER_TOKENS", "8,24").split(","))
TOKENS = range(FEWEST_TOKENS, MOST_TOKENS + 1)
PROMPT = 8  # tokens
FEWEST = 40  # pairs
WARM_UP = 10  # pairs
SETTLING_SEC = 0.15  # after a burst, to write its records
PROCESSES = 3  # HTTP and tokenizer, scheduler, detokenizer
SWITCHED = Path(__file__).parent / "switched"


class Clients:
    """Send the same requests to a server again and again."""

    def __init__(self, port):
        self._url = f"http://127.0.0.1:{port}/generate"
        drawn = random.Random(0)
        self._questions = [self._question(drawn) for _ in range(IN_A_BURST)]
        self.tokens = sum(question["sampling_params"]["max_new_tokens"] for question in self._questions)

    def _question(self, drawn):
        first = drawn.randrange(300, 400)
        sampling = {"max_new_tokens": drawn.choice(TOKENS), "temperature": 0, "ignore_eos": True}
        return {"input_ids": list(range(first, first + PROMPT)), "sampling_params": sampling}

    async def __aenter__(self):
        import aiohttp

        self._session = aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0))
        return self

    async def __aexit__(self, *exception):
        await self._session.close()

    async def burst(self):
        """Send all requests; a client with an answer sends the next one. Return the seconds that it took."""
        questions, begun = iter(self._questions), time.perf_counter()
        given = await asyncio.gather(*(self._ask_on(questions) for _ in range(REQUESTS)))
        took_sec = time.perf_counter() - begun
        assert sum(given) == self.tokens
        return took_sec

    async def _ask_on(self, questions):
        tokens = 0
        for question in questions:
            async with self._session.post(self._url, json=question) as reply:
                assert reply.status == 200
                tokens += (await reply.json())["meta_info"]["completion_tokens"]
        return tokens


class Switched:
    """A server whose processes switch the instrumentation off and on when they are asked."""

    def __init__(self, folder, detail):
        self._asked, self._times = folder / "switch", 0
        self._asked.write_text("on")
        settings = {
            "SGLANG_INSTRUMENT": "1",
            "SGLANG_INSTRUMENT_LOG_DIR": str(folder / "logs"),
            "SGLANG_INSTRUMENT_ENGINE_DETAIL": detail,
            "BENCH_SWITCHED": str(folder),
            "PYTHONPATH": os.pathsep.join(
                filter(None, (str(SWITCHED), str(folder), os.environ.get("PYTHONPATH")))
            ),
        }
        # An idle server would busy-wait, and take a core from the clients of this one.
        room = max(4096, 2 * REQUESTS * (PROMPT + MOST_TOKENS))
        arguments = ("--sleep-on-idle", f"--max-running-requests={REQUESTS}", f"--max-total-tokens={room}")
        self._server = start_server(folder, settings, *arguments)
        self.stop, self.port = self._server.stop, self._server.port
        names = self._server.children().items()
        self._pids = [self._server.process.pid, *(pid for pid, name in names if "sglang::" in name)]
        assert len(self._pids) == PROCESSES
        self.logs = folder / "logs"

    async def switch(self, state):
        """Switch all processes to a state."""
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
        """Return the size of the log so far."""
        return sum(path.stat().st_size for path in self.logs.rglob("engine/*.jsonl"))

    def cpu_sec(self):
        """Return the CPU time of its processes."""
        import psutil

        times = [psutil.Process(pid).cpu_times() for pid in self._pids]
        return sum(time.user + time.system for time in times)

    async def burst(self, state, clients):
        """Return the tokens per second and the CPU seconds per token of a burst."""
        await self.switch(state)
        cpu, logged = self.cpu_sec(), self.logged_bytes()
        took_sec = await clients.burst()
        await asyncio.sleep(SETTLING_SEC)
        assert (self.logged_bytes() - logged > 10 * clients.tokens) == (state in ("on", "ungauged"))
        return {
            "tokens_per_sec": clients.tokens / took_sec,
            "cpu_per_token": (self.cpu_sec() - cpu) / clients.tokens,
        }


async def measure(server, pairs):
    """Append pairs to `pairs` until the result is precise enough, or the time is over."""
    order = random.Random(0)
    states = {"with": STATE, "without": AGAINST}
    async with Clients(server.port) as clients:
        for _ in range(WARM_UP):
            await server.burst(STATE, clients)
            await server.burst(AGAINST, clients)
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            places = order.sample(list(states), 2)
            pairs.append({place: await server.burst(states[place], clients) for place in places})
            if len(pairs) >= FEWEST and len(pairs) % 20 == 0:
                _, low, high = middle(logarithms(pairs, "tokens_per_sec"))
                if high - low <= SHARP:
                    return


def logarithms(pairs, key):
    """Return the logarithm of each pair's ratio."""
    return [math.log(pair["with"][key] / pair["without"][key]) for pair in pairs]


@pytest.mark.parametrize("detail", LEAST)
def test_a_recorded_server_keeps_its_throughput(show, tmp_path, detail):
    pairs = []
    with ExitStack() as stack:
        server = Switched(tmp_path, detail)
        stack.callback(server.stop)
        asyncio.run(measure(server, pairs))
    given, low, high = map(math.exp, middle(logarithms(pairs, "tokens_per_sec")))
    cpu, cpu_low, cpu_high = map(math.exp, middle(logarithms(pairs, "cpu_per_token")))
    without = statistics.median(pair["without"]["tokens_per_sec"] for pair in pairs)
    answer = (f"{given:.3f}", f"{low:.3f} .. {high:.3f}", LEAST[detail])
    rows = [(detail, f"{without:.0f}", len(pairs), *answer, f"{cpu:.3f} ({cpu_low:.3f} .. {cpu_high:.3f})")]
    columns = (
        "engine_detail",
        f"tokens/s {AGAINST}",
        "pairs",
        STATE,
        "95 % interval",
        "bound",
        "CPU a token",
    )
    show(table(f"a real server, {REQUESTS} requests at once, {STATE} against {AGAINST}", columns, rows))
    others = [name for name, usual in ((STATE, "on"), (AGAINST, "off")) if name != usual]
    save("-".join(("server", detail, *others)), rows, rounds=pairs)
    assert high - low <= WIDTH
    assert low >= LEAST[detail]
