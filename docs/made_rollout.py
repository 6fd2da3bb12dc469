"""Run a rollout whose engine, tools and trainer only wait: `python docs/made_rollout.py LOGS`.

Three workers do 32 requests each in six steps, and log them as a rollout of your own does. Worker 2 has slow
tools in step 3; in the last step a tool of worker 0 does not return. No engine and no model are needed.
"""

from __future__ import annotations

import asyncio
import contextlib
import multiprocessing
import os
import random
import sys
import time
from multiprocessing.synchronize import Barrier
from typing import Final

import sglang_instrument
from sglang_instrument import bind, span

WORKERS, REQUESTS, STEPS = 3, 32, 6
SLOW_STEP, SLOW_SEC = 3, 3.0
RUNS_AT_ONCE: Final = 12  # calls of one engine
HANGS: Final = f"{STEPS}-0-07"  # this request does


def worker(rank: int, logs: str, meeting: Barrier) -> None:
    """Do the steps of one worker, and meet the others after each."""
    os.environ["RANK"] = str(rank)
    sglang_instrument.install(log_dir=logs)
    for step in range(1, STEPS + 1):
        chance = random.Random(f"{step}/{rank}")  # noqa: S311 - no secret
        with bind(step=step, worker=rank), span("total_step_duration"):
            asyncio.run(requests(step, rank, chance))
            with span("barrier"):
                meeting.wait()
        time.sleep(2.0)  # here a trainer would train


async def requests(step: int, rank: int, chance: random.Random) -> None:
    """Do all requests of a step."""
    engine = asyncio.Semaphore(RUNS_AT_ONCE)
    await asyncio.gather(
        *(request(f"{step}-{rank}-{n:02}", step, rank, chance, engine) for n in range(REQUESTS))
    )


async def request(name: str, step: int, rank: int, chance: random.Random, engine: asyncio.Semaphore) -> None:
    """Do a request of one to four turns, each with a tool but the last."""
    hangs = name == HANGS
    turns = 3 if hangs else chance.choices((1, 2, 3, 4), (2, 4, 3, 1))[0]
    with bind(request_id=name):
        async with span("request") as whole:
            for turn in range(turns):
                with bind(turn=turn):
                    async with span("turn"):
                        await call(chance, engine)
                        if turn + 1 < turns:
                            await tool(step, rank, chance, hangs)
            async with span("reward"):
                await asyncio.sleep(chance.uniform(0.02, 0.2))
            whole.add(reward=float(chance.random() < 0.7))


async def call(chance: random.Random, engine: asyncio.Semaphore) -> None:
    """Generate some tokens."""
    tokens = min(400, round(chance.lognormvariate(4.2, 0.7)))
    async with span("generate") as call:
        async with engine:
            await asyncio.sleep(tokens / 90)
        call.add(completion_tokens=tokens)


async def tool(step: int, rank: int, chance: random.Random, hangs: bool) -> None:
    """Call a tool."""
    slower_sec = SLOW_SEC if (step, rank) == (SLOW_STEP, WORKERS - 1) else 0.0
    async with span("tool"):
        await asyncio.sleep(3600 if hangs else slower_sec + chance.uniform(0.1, 0.6))


def main(logs: str) -> None:
    """Start the workers, and wait for them."""
    os.environ["SGLANG_INSTRUMENT_RUN_ID"] = f"made-{int(time.time())}"
    own = multiprocessing.get_context("spawn")
    meeting = own.Barrier(WORKERS)
    workers = [own.Process(target=worker, args=(rank, logs, meeting), daemon=True) for rank in range(WORKERS)]
    for one in workers:
        one.start()
    with contextlib.suppress(KeyboardInterrupt):
        for one in workers:
            one.join()


if __name__ == "__main__":
    main(sys.argv[1])
