"""What SGLang's server gives with its processes recorded, against without: rounds until that is sharp."""

import asyncio
import os
import random
import statistics
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import pytest
from rounds import save, table
from test_demo import interval

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))

from sglang_server import start_server

SECONDS = float(os.environ.get("BENCH_SERVER_SECONDS", "900"))
WIDTH = 0.02  # of the 95 % interval of the ratio of throughputs
LEAST = {"requests": 0.98, "batches": 0.96}  # lower bound of the interval
REQUESTS = 64  # at once
TOKENS = 16
FEWEST = 20  # rounds


async def ask(session, port, number):
    sampling = {"max_new_tokens": TOKENS, "temperature": 0, "ignore_eos": True}
    body = {"input_ids": [300 + number + place for place in range(8)], "sampling_params": sampling}
    async with session.post(f"http://127.0.0.1:{port}/generate", json=body) as reply:
        assert reply.status == 200
        return (await reply.json())["meta_info"]["completion_tokens"]


async def load(port):
    """Return tokens a second for so many requests at once."""
    import aiohttp

    unlimited = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=unlimited) as session:
        await asyncio.gather(*(ask(session, port, 0) for _ in range(4)))  # connections
        begun = time.perf_counter()
        tokens = sum(await asyncio.gather(*(ask(session, port, number) for number in range(REQUESTS))))
        return tokens / (time.perf_counter() - begun)


def settings(detail, folder):
    if detail == "off":
        return {"SGLANG_INSTRUMENT": "0"}
    logs = {"SGLANG_INSTRUMENT_LOG_DIR": str(folder / "logs"), "SGLANG_INSTRUMENT_ENGINE_DETAIL": detail}
    return {"SGLANG_INSTRUMENT": "1", **logs}


def measured(tmp_path, details):
    """Yield rounds: tokens a second by detail, each asked in turn, in random order."""
    order = random.Random(0)
    # A server that nobody asks would spin, and take a processor from the one that is measured.
    arguments = ("--sleep-on-idle", "--max-running-requests=64", "--max-total-tokens=4096")
    with ExitStack() as stack:
        ports = {}
        for detail in details:
            folder = tmp_path / detail
            folder.mkdir()
            server = start_server(folder, settings(detail, folder), *arguments)
            stack.callback(server.stop)
            ports[detail] = server.port
            asyncio.run(load(server.port))
        until = time.monotonic() + SECONDS
        while time.monotonic() < until:
            shuffled = list(details)
            order.shuffle(shuffled)
            yield {detail: asyncio.run(load(ports[detail])) for detail in shuffled}


@pytest.mark.parametrize("detail", LEAST)
def test_a_server_gives_as_much_with_its_processes_recorded(show, tmp_path, detail):
    rounds, ratios = [], []
    for answers in measured(tmp_path, ["off", detail]):
        rounds.append(answers)
        ratios.append(answers[detail] / answers["off"])
        if len(ratios) >= FEWEST and len(ratios) % 10 == 0:
            low, high = interval(ratios)
            if high - low <= WIDTH:
                break
    low, high = interval(ratios)
    without = statistics.median(answers["off"] for answers in rounds)
    ratio = f"{statistics.median(ratios):.3f}"
    rows = [(detail, f"{without:.0f}", len(rounds), ratio, f"{low:.3f} .. {high:.3f}", LEAST[detail])]
    columns = ("engine_detail", "tokens/s off", "pairs", "ratio", "95 % interval", "bound")
    show(table(f"a real server, {REQUESTS} requests at once, recorded against not", columns, rows))
    save(f"server-{detail}", rows, rounds=rounds)
    assert high - low <= WIDTH
    assert low >= LEAST[detail]
