"""Roll out against servers in a closed loop: groups, turns with tools, a limit of the client, a barrier.

    python closed_loop.py NAME LOG_DIR STEPS LIMIT PLAN URL [URL ...]

With `ENOUGH=N`, a worker aborts what is left once N of its groups are complete. `TEMPERATURE` and
`LOGPROBS=1` say how tokens are drawn, and whether their log-probabilities are asked for. `LONG=N` makes first
prompts N times as long, `REPLY=N` is the median of the replies' tokens.

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
from collections import Counter
from pathlib import Path
from uuid import uuid4

import aiohttp

import sglang_instrument
from sglang_instrument import bind, span, step

WORKERS, GROUPS, MEMBERS = 2, 6, 4
LONG, REPLY = int(os.environ.get("LONG", 1)), int(os.environ.get("REPLY", 60))
SYSTEM = random.Random(1).choices(range(10, 740), k=24 * LONG)
PLAN = {}
TEMPERATURE, LOGPROBS = float(os.environ.get("TEMPERATURE", 1)), os.environ.get("LOGPROBS") == "1"


def draw(dice, median, low, high, sigma=0.9):
    return int(min(high, max(low, dice.lognormvariate(0, sigma) * median)))


async def ask(session, url, prompt, tokens, calls):
    """Call a server; return the ids of its reply."""
    sampling = {"max_new_tokens": tokens, "temperature": TEMPERATURE, "ignore_eos": True}
    rid = uuid4().hex
    calls[rid] = url
    asking = {"input_ids": prompt, "sampling_params": sampling, "rid": rid, "return_logprob": LOGPROBS}
    with span("generate") as call:
        while (reply := await answer_of(session, url + "/generate", asking)) is None:
            await asyncio.sleep(0.2)
        counts = reply["meta_info"]
        call.add(rid=counts["id"], generated_tokens=counts["completion_tokens"])
        call.add(prompt_tokens=counts.get("prompt_tokens"))  # unknown of a call that was aborted in the queue
        call.add(finish_reason=counts["finish_reason"]["type"])
    del calls[rid]
    return reply.get("output_ids") or []


async def answer_of(session, url, asking):
    """Return a server's answer; None of a router that has no server yet."""
    async with session.post(url, json=asking) as got:
        if got.status == 503:
            return None
        got.raise_for_status()
        return await got.json()


class Enough:
    """Aborts the open calls of a worker once so many groups are complete; of 0 groups, never."""

    def __init__(self, session, groups):
        self.session, self.missing, self.calls = session, groups, {}
        self.left, self.is_reached = Counter(), False

    async def count(self, group):
        self.left[group] += 1
        if self.left[group] < MEMBERS:
            return
        self.missing -= 1
        if self.missing == 0:
            self.is_reached = True
            for rid, url in list(self.calls.items()):
                async with self.session.post(url + "/abort_request", json={"rid": rid}) as reply:
                    reply.raise_for_status()


async def converse(session, urls, prompt, dice, name, group, limit, enough):
    async with limit:
        if enough.is_reached:
            return
        with bind(request_id=name), span("request", group=group) as request:
            sequence, turns, keep = list(prompt), dice.choices((1, 2, 3, 4), (3, 3, 2, 2))[0], 0
            plan = PLAN[name] = {"group": group, "turns": []}
            for turn in range(turns):
                with bind(turn=turn), span("turn"):
                    tokens = draw(dice, REPLY, 4, 400)
                    plan["turns"].append([len(sequence), keep, tokens])
                    reply = await ask(session, urls[group % len(urls)], sequence, tokens, enough.calls)
                    if enough.is_reached:
                        break
                    if turn + 1 < turns:
                        with span("tool", tool="sleep"):
                            await asyncio.sleep(dice.uniform(0.05, 0.5))
                        if dice.random() < 0.15:  # a template that drops a part of the reply
                            reply = reply[: len(reply) // 2]
                        keep = len(sequence) + len(reply)
                        sequence += reply + dice.choices(range(10, 740), k=dice.randrange(8, 48))
                    if enough.is_reached:
                        break
            request.add(turns=turn + 1, finish_reason="abort" if enough.is_reached else "length")
    if not enough.is_reached:
        await enough.count(group)


async def work(session, urls, number, rank, barrier, most):
    dice = random.Random(1000 * number + rank)
    limit, enough = asyncio.Semaphore(most), Enough(session, int(os.environ.get("ENOUGH", 0)))
    with bind(worker=rank), span("total_step_duration"):
        talks = []
        for group in range(GROUPS):
            prompt = SYSTEM + dice.choices(range(10, 740), k=LONG * draw(dice, 90, 16, 300, 0.6))
            talks += [
                converse(
                    session,
                    urls,
                    prompt,
                    random.Random(dice.random()),
                    f"{number}-{rank}-{group}-{member}",
                    100 * rank + group,
                    limit,
                    enough,
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
