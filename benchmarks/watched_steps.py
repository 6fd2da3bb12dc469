"""Log steps of 0.6 s with as many records as the demo's: `python watched_steps.py FOLDER SECONDS`.

`watch` in a terminal and the follower of a tracker follow them. It prints a line of JSON: how many steps, in
how many seconds, and the processor time that the watchers took, in seconds. The first steps, in which their
programs are read, do not count.
"""

import json
import os
import sys
import time
from pathlib import Path

from switched import watchers

import sglang_instrument
from sglang_instrument import bind, span

REQUESTS, TURNS = 16, 2
WARM_SEC = 30  # by then, both have analysed a step


def one_step(number):
    with bind(step=number, worker=0), span("total_step_duration"):
        for request in range(REQUESTS):
            with bind(request_id=f"{number}-{request}"), span("async_rollout_request_complete") as whole:
                for turn in range(TURNS):
                    one_turn(turn)
                whole.add(actual_response_tokens=TURNS * 20)
            time.sleep(0.02)
    time.sleep(0.15)


def one_turn(turn):
    with bind(turn=turn), span("turn_end"):
        for _ in range(8):
            with span("turn_pre_process"):
                pass
        with span("turn_engine_call") as call:
            call.add(completion_tokens=20)
        for _ in range(6):
            with span("tool_execution"):
                time.sleep(0.001)


def main(folder, seconds):
    sglang_instrument.install(log_dir=str(folder), scalars=True)
    logs = Path(sglang_instrument.status()["folder"])
    number, begun = 1, time.monotonic()
    one_step(number)
    watchers.start(logs)
    taken = counted = warm = None
    while (now := time.monotonic() - begun) < WARM_SEC + seconds:
        if taken is None and now >= WARM_SEC:
            taken, counted, warm = watchers.cpu_sec(logs), number, now
        number += 1
        one_step(number)
    took = {"steps": number - counted, "sec": now - warm, "cpu_sec": watchers.cpu_sec(logs) - taken}
    watchers.end(logs)
    print(json.dumps(took))


if __name__ == "__main__":
    os.environ.setdefault("EXPERIMENT_NAME", "watched")
    main(Path(sys.argv[1]), float(sys.argv[2]))
