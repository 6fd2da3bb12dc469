"""Train in a loop over real SGLang servers: a trainer's process, and a rollout's that the trainer starts.

    python served_loop.py FOLDER NAME PORTS STEPS SHAPE TRAIN_SEC REQUESTS

The trainer only sleeps. The rollout sends the same requests in each run, each with one or two calls, to the
servers in turn. A custom logit processor makes each batch of a server take `PACE_SEC` more: so the limit of
running requests decides how fast a server is, as on a GPU, and not how many cores the machine has.
"""

import asyncio
import json
import os
import random
import subprocess
import sys
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor

import sglang_instrument
from sglang_instrument import bind, span, step

PACE_SEC = 0.02
TURN_SHARE = 0.4  # of the requests have a second turn
TOOL_SEC, REWARD_SEC, SEND_SEC = 0.1, 0.05, 0.1


class Pace:
    """What SGLang calls with the logits of each batch."""

    def __call__(self, logits, params=None):
        import time

        time.sleep(0.02)
        return logits


def processor():
    """Return the class as SGLang takes it in a request."""
    import dill

    return json.dumps({"callable": dill.dumps(Pace, byref=False, recurse=True).hex()})


def draw(number, requests):
    """Return the calls of each request of a step, in tokens: the same in every run."""
    dice = random.Random(number)
    drawn = []
    for _ in range(requests):
        turns = 2 if dice.random() < TURN_SHARE else 1
        drawn.append([min(120, 8 + int(dice.lognormvariate(3.0, 0.7))) for _ in range(turns)])
    return drawn


class Servers:
    """Servers that are called in turn."""

    def __init__(self, ports, requests):
        self.ports, self.calls = ports, 0
        self.pool = ThreadPoolExecutor(requests)
        self.processor = processor()

    async def generate(self, prompt, tokens):
        """Call the next server; return when it has written so many tokens."""
        port = self.ports[self.calls % len(self.ports)]
        self.calls += 1
        sampling = {"max_new_tokens": tokens, "temperature": 0, "ignore_eos": True}
        body = {"input_ids": prompt, "sampling_params": sampling, "custom_logit_processor": self.processor}
        return await asyncio.get_running_loop().run_in_executor(self.pool, self._post, port, body)

    def _post(self, port, body):
        request = urllib.request.Request(
            f"http://127.0.0.1:{port}/generate",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=600) as reply:
            return json.loads(reply.read())


async def conversation(servers, number, place, turns):
    name = f"s{number}-{place}"
    with bind(request_id=name), span("request"):
        prompt = [300 + 7 * place + token for token in range(8)]
        for turn, tokens in enumerate(turns):
            with bind(turn=turn):
                with span("generate", generated_tokens=tokens):
                    reply = await servers.generate(prompt, tokens)
                assert reply["meta_info"]["completion_tokens"] == tokens, reply["meta_info"]
                if turn + 1 < len(turns):
                    with span("tool", tool="sleep"):
                        await asyncio.sleep(TOOL_SEC)
                prompt = [*prompt, *reply["output_ids"], 305]
        with span("reward", reward=1.0):
            await asyncio.sleep(REWARD_SEC)


async def rollout(servers, number, requests):
    with step(number), span("total_step_duration"):
        calls = (
            conversation(servers, number, place, turns) for place, turns in enumerate(draw(number, requests))
        )
        await asyncio.gather(*calls)


def work(ports, requests):
    """Roll out each step whose number comes in; say when it is done."""
    sglang_instrument.install(role="worker", trainers=("none",))
    servers = Servers(ports, requests)
    for line in sys.stdin:
        asyncio.run(rollout(servers, int(line), requests))
        sglang_instrument.flush()
        print("done", flush=True)


def train(ports, steps, shape, train_sec, requests):
    """Take a batch, send weights, train; one step off, the next rollout begins before training."""
    sglang_instrument.install(role="trainer", trainers=("none",))
    command = [sys.executable, __file__, "work", json.dumps(ports), str(requests)]
    worker = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def ask(number):
        if number <= steps:
            worker.stdin.write(f"{number}\n")
            worker.stdin.flush()

    off = shape == "off"
    if off:
        ask(1)
    for number in range(1, steps + 1):
        with step(number), span("trainer_step"):
            with span("trainer_generate"):
                if not off:
                    ask(number)
                assert worker.stdout.readline() == "done\n"
            if off:
                with span("weights_update", how="made up"):
                    time.sleep(SEND_SEC)
                ask(number + 1)
            with span("trainer_old_log_prob"):
                time.sleep(train_sec * 0.3)
            with span("trainer_update_actor"):
                time.sleep(train_sec * 0.7)
            if not off:
                with span("weights_update", how="made up"):
                    time.sleep(SEND_SEC)
    worker.stdin.close()
    worker.wait(600)
    sglang_instrument.flush()


if __name__ == "__main__":
    if sys.argv[1] == "work":
        work(json.loads(sys.argv[2]), int(sys.argv[3]))
    else:
        folder, name, ports, steps, shape, train_sec, requests = sys.argv[1:]
        os.environ["SGLANG_INSTRUMENT_LOG_DIR"], os.environ["EXPERIMENT_NAME"] = folder, name
        train(json.loads(ports), int(steps), shape, float(train_sec), int(requests))
