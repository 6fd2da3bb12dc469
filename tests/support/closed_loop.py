"""Roll out against servers in a closed loop: groups, turns with tools, a limit of the client, a barrier.

    python closed_loop.py NAME LOG_DIR STEPS LIMIT PLAN URL [URL ...]

Each step flushes the caches, and is the same in each run. With "paced" in the environment variable `PACE`,
each step waits for a line on stdin, and a line on stdout says that it is over. `PLAN` gets the true agenda as
JSON: by request its group, and by turn the tokens of the prompt, those that it shares with the sequence so
far, and those of the reply.
"""

import asyncio
import json
import os
import random
import sys
from pathlib import Path

import aiohttp

import sglang_instrument
from sglang_instrument import bind, span, step

WORKERS, GROUPS, MEMBERS = 2, 6, 4
SYSTEM = random.Random(1).choices(range(10, 740), k=24)
PLAN = {}


def draw(dice, median, low, high, sigma=0.9):
    return int(min(high, max(low, dice.lognormvariate(0, sigma) * median)))


async def ask(session, url, prompt, tokens):
    """Call a server; return the ids of its reply."""
    sampling = {"max_new_tokens": tokens, "temperature": 1.0, "ignore_eos": True}
    with span("generate") as call:
        async with session.post(
            url + "/generate", json={"input_ids": prompt, "sampling_params": sampling}
        ) as got:
            got.raise_for_status()
            reply = await got.json()
        told_by_engine = reply["meta_info"]
        call.add(rid=told_by_engine["id"], generated_tokens=told_by_engine["completion_tokens"])
        call.add(prompt_tokens=told_by_engine["prompt_tokens"], finish_reason="length")
    return reply["output_ids"]


async def converse(session, urls, prompt, dice, name, group, limit):
    async with limit:
        with bind(request_id=name), span("request", group=group) as request:
            sequence, turns, keep = list(prompt), dice.choices((1, 2, 3, 4), (3, 3, 2, 2))[0], 0
            plan = PLAN[name] = {"group": group, "turns": []}
            for turn in range(turns):
                with bind(turn=turn), span("turn"):
                    tokens = draw(dice, 60, 4, 400)
                    plan["turns"].append([len(sequence), keep, tokens])
                    reply = await ask(session, urls[group % len(urls)], sequence, tokens)
                    if turn + 1 < turns:
                        with span("tool", tool="sleep"):
                            await asyncio.sleep(dice.uniform(0.05, 0.5))
                        if dice.random() < 0.15:  # a template that drops a part of the reply
                            reply = reply[: len(reply) // 2]
                        keep = len(sequence) + len(reply)
                        sequence += reply + dice.choices(range(10, 740), k=dice.randrange(8, 48))
            request.add(turns=turns)


async def work(session, urls, number, rank, barrier, most):
    dice = random.Random(1000 * number + rank)
    limit = asyncio.Semaphore(most)
    with bind(worker=rank), span("total_step_duration"):
        talks = []
        for group in range(GROUPS):
            prompt = SYSTEM + dice.choices(range(10, 740), k=draw(dice, 90, 16, 300, 0.6))
            talks += [
                converse(
                    session,
                    urls,
                    prompt,
                    random.Random(dice.random()),
                    f"{number}-{rank}-{group}-{member}",
                    100 * rank + group,
                    limit,
                )
                for member in range(MEMBERS)
            ]
        await asyncio.gather(*talks)
        with span("barrier_wait_duration"):
            await barrier.wait()


async def roll_out(steps, most, urls):
    connector = aiohttp.TCPConnector(
        limit=0, keepalive_timeout=3
    )  # uvicorn closes idle connections after 5 s
    async with aiohttp.ClientSession(
        connector=connector, timeout=aiohttp.ClientTimeout(total=None)
    ) as session:
        for number in range(1, steps + 1):
            if os.environ.get("PACE") == "paced" and not await asyncio.to_thread(sys.stdin.readline):
                return
            with step(number), span("cache_flush_duration"):
                for url in urls:
                    async with session.post(url + "/flush_cache") as reply:
                        reply.raise_for_status()
            barrier = Barrier(WORKERS)
            with step(number):
                await asyncio.gather(
                    *(work(session, urls, number, rank, barrier, most) for rank in range(WORKERS))
                )
            await asyncio.sleep(0.3)
            print("done", number, flush=True)


class Barrier:
    """All workers leave together; asyncio has one only since Python 3.11."""

    def __init__(self, parties):
        self.missing, self.over = parties, asyncio.Event()

    async def wait(self):
        self.missing -= 1
        if not self.missing:
            self.over.set()
        await self.over.wait()


if __name__ == "__main__":
    name, logs, steps, most, plan, *urls = sys.argv[1:]
    sglang_instrument.install(experiment=name, log_dir=logs, trainers=("none",))
    asyncio.run(roll_out(int(steps), int(most) or 10_000, urls))
    sglang_instrument.uninstall()
    Path(plan).write_text(json.dumps(PLAN))
