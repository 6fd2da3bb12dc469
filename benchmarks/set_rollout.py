"""Roll out against servers under settings of a rollout's own: caps, time-outs, pools of tools and rewards.

    set_rollout.py NAME LOG_DIR STEPS SEED SETTINGS URL [URL ...]

SETTINGS is JSON of the fields of `Settings`. Two workers roll out 12 requests each in a step, in groups of 4.
A group has one server, by its number. Another seed has other prompts. Requests that are not recorded warm
each server up.
"""

import asyncio
import json
import random
import sys
from contextlib import nullcontext
from dataclasses import dataclass

import aiohttp

import sglang_instrument
from sglang_instrument import bind, span, step

WORKERS, GROUPS, MEMBERS = 2, 3, 4
TOKENS = range(10, 740)


@dataclass
class Settings:
    """How the rollout is set; the default leaves little to gain.

    Attributes:
        most_tokens, most_turns: Caps of a response over its turns, and of the turns themselves.
        sigma: Of the logarithms of a reply's tokens.
        go_on_share: Of the turns that are followed by another one.
        tool_sec, tool_places: What a call of the tool takes, and how many run at once; 0 is any number.
        timeout_share, timeout_sec: Calls of the tool that never answer, and when they are given up.
        reward_sec, reward_places: The same of rewards.
        is_reward_aside: Whether a request ends before its reward is known.
        before_sec: Seconds of preprocessing in each step.
        is_routed_to_one: Whether all groups go to the first server.
    """

    most_tokens: int = 100_000
    most_turns: int = 100
    sigma: float = 0.1
    go_on_share: float = 0.4
    tool_sec: float = 0.2
    tool_places: int = 0
    timeout_share: float = 0.0
    timeout_sec: float = 0.0
    reward_sec: float = 0.02
    reward_places: int = 0
    is_reward_aside: bool = False
    before_sec: float = 0.0
    is_routed_to_one: bool = False


def pool(places):
    return asyncio.Semaphore(places) if places else nullcontext()


class Rollout:
    def __init__(self, settings, session, urls):
        self.settings, self.session, self.urls = settings, session, urls
        self.tools, self.rewards = pool(settings.tool_places), pool(settings.reward_places)
        self.aside = []

    async def generate(self, url, prompt, tokens):
        asked = {"max_new_tokens": tokens, "temperature": 1.0, "ignore_eos": True}
        async with self.session.post(
            url + "/generate", json={"input_ids": prompt, "sampling_params": asked}
        ) as got:
            got.raise_for_status()
            return await got.json()

    async def call_tool(self, dice):
        hangs, sec = dice.random() < self.settings.timeout_share, self.settings.tool_sec
        sec *= dice.uniform(0.8, 1.2)
        with span("tool_call", tool="search"):
            if hangs:
                await asyncio.sleep(self.settings.timeout_sec)
                return
            async with self.tools:
                await asyncio.sleep(sec)

    async def score(self, dice):
        sec = self.settings.reward_sec * dice.uniform(0.8, 1.2)
        with span("reward_calculation"):
            async with self.rewards:
                await asyncio.sleep(sec)

    async def converse(self, dice, prompt, name, group):
        settings, sequence, turn = self.settings, list(prompt), 0
        url = self.urls[0 if settings.is_routed_to_one else group % len(self.urls)]
        left = settings.most_tokens
        with bind(request_id=name), span("request", group=group) as request:
            while True:
                tokens = min(left, 1200, max(4, round(80 * dice.lognormvariate(0, settings.sigma))))
                goes_on = dice.random() < settings.go_on_share
                with bind(turn=turn), span("turn"):
                    with span("generate") as call:
                        reply = await self.generate(url, sequence, tokens)
                        call.add(rid=reply["meta_info"]["id"], generated_tokens=tokens)
                        call.add(prompt_tokens=reply["meta_info"]["prompt_tokens"], finish_reason="length")
                    left -= tokens
                    turn += 1
                    sequence += reply["output_ids"]
                    if not goes_on or left <= 0 or turn >= settings.most_turns or len(sequence) > 3000:
                        break
                    await self.call_tool(dice)
                    sequence += dice.choices(TOKENS, k=16)
            if settings.is_reward_aside:
                self.aside.append(asyncio.create_task(self.score(dice)))
            else:
                await self.score(dice)
            request.add(turns=turn, finish_reason="length", response_tokens=settings.most_tokens - left)

    async def work(self, number, rank, seed):
        dice = random.Random(f"{seed} {number} {rank}")
        with bind(worker=rank), span("total_step_duration"):
            if self.settings.before_sec:
                with span("preprocessing_duration"):
                    await asyncio.sleep(self.settings.before_sec)
            talks = []
            for group in range(GROUPS):
                prompt = dice.choices(TOKENS, k=dice.randrange(60, 120))
                for member in range(MEMBERS):
                    name = f"{number}-{rank}-{group}-{member}"
                    own_dice = random.Random(dice.random())
                    talks.append(self.converse(own_dice, prompt, name, GROUPS * rank + group))
            await asyncio.gather(*talks)

    async def step(self, number, seed):
        with step(number):
            for url in self.urls:
                with span("cache_flush_duration"):
                    async with self.session.post(url + "/flush_cache") as reply:
                        reply.raise_for_status()
            await asyncio.gather(*(self.work(number, rank, seed) for rank in range(WORKERS)))


async def main(steps, seed, settings, urls):
    connector = aiohttp.TCPConnector(limit=0, keepalive_timeout=3)
    timeout = aiohttp.ClientTimeout(total=None)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        rollout = Rollout(settings, session, urls)
        for url in urls:
            warm = [rollout.generate(url, [20 + number] * 40, 40) for number in range(4)]
            await asyncio.gather(*warm)
        for number in range(1, steps + 1):
            await rollout.step(number, seed)
        await asyncio.gather(*rollout.aside)


if __name__ == "__main__":
    name, logs, steps, seed, settings, *urls = sys.argv[1:]
    sglang_instrument.install(experiment=name, log_dir=logs, trainers=("none",))
    asyncio.run(main(int(steps), seed, Settings(**json.loads(settings)), urls))
    sglang_instrument.uninstall()
