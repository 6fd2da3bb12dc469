"""Measure the player of the twin against a stand-in server: its CPU, and how late its calls are.

    python twin_player.py [OPEN] [SECONDS] [PROMPT]

So many requests are open for so many seconds, with prompts of so many tokens; replies take 1 to 4 s, tools
0.05 to 0.5 s. The bound: under one core, and 5 ms at the 99th percentile from when a call was due to when the
player sent it.
"""

import random
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path

from sglang_instrument.free_ports import free_port
from sglang_instrument.twin import Agenda, AgendaRequest, AgendaStep, AgendaTurn, play

STAND_IN = Path(__file__).parents[1] / "tests/support/stand_in_server.py"
TOKEN_SEC = 0.01
RAMP_SEC = 2.0  # in which the requests begin


def requests_of(count, seconds, prompt):
    dice = random.Random(1)
    for number in range(count):
        turns, now, length = [], 0.0, prompt
        while now < seconds:
            tokens, wait = dice.randrange(100, 400), dice.uniform(0.05, 0.5) if turns else 0.0
            turns.append(
                AgendaTurn(length, length - 40 if turns else length, tokens, wait, TOKEN_SEC * tokens)
            )
            now += TOKEN_SEC * tokens + wait
            length += 20
        yield AgendaRequest(str(number), 0, f"g{number // 4}", dice.uniform(0, RAMP_SEC), tuple(turns))


def main(count=2000, seconds=15.0, prompt=600):
    port = free_port()
    command = [sys.executable, STAND_IN, "--port", str(port), "--token-sec", str(TOKEN_SEC)]
    server = subprocess.Popen([*map(str, command)])
    url = f"http://127.0.0.1:{port}"
    try:
        wait_until_it_answers(url)
        steps = [AgendaStep(1, tuple(requests_of(int(count), float(seconds), int(prompt))))]
        with tempfile.TemporaryDirectory() as folder:
            begun, cpu = time.monotonic(), time.process_time()
            [played] = play(Agenda(lambda: iter(steps)), [url], name="late", log_dir=folder, warm_up=False)
            wall_sec, cpu_sec = time.monotonic() - begun, time.process_time() - cpu
    finally:
        server.kill()
        server.wait()
    late = sorted(1000 * sec for sec in played.late_sec)
    shown = ", ".join(f"{name} {late[int(q * (len(late) - 1))]:.2f}" for name, q in QUANTILES.items())
    print(
        f"{count} open, {played.calls} calls in {played.duration_sec:.1f} s; "
        f"player {cpu_sec / wall_sec:.2f} cores"
    )
    print(f"late, ms: {shown}")


QUANTILES = {"p50": 0.5, "p90": 0.9, "p99": 0.99, "most": 1.0}


def wait_until_it_answers(url):
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        try:
            urllib.request.urlopen(url + "/counts", timeout=5).read()
            return
        except OSError:
            time.sleep(0.05)
    raise SystemExit("the stand-in does not answer")


if __name__ == "__main__":
    main(*sys.argv[1:])
