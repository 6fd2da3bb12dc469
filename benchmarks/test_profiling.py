"""Measure how long it takes to start and verify the profilers of 64 workers that answer in a second each."""

import json
import statistics
import subprocess
import sys
import time

from rounds import HERE, save, table

from sglang_instrument.profilers.options import ProfileOptions
from sglang_instrument.profilers.switching import start_all
from sglang_instrument.profilers.workers import workers_at

WORKERS, ANSWER_SEC, ROUNDS, MOST_SEC = 64, 1.0, 7, 2.0


def test_64_workers_start_and_are_verified_within_two_seconds(show, tmp_path):
    command = [sys.executable, str(HERE / "slow_servers.py"), str(WORKERS), str(ANSWER_SEC)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as servers:
        try:
            ports = json.loads(servers.stdout.readline())
            took = []
            for _ in range(ROUNDS):
                begun = time.perf_counter()
                workers = workers_at(f"127.0.0.1:{port}" for port in ports)
                outcomes = start_all(workers, ProfileOptions(output_dir=str(tmp_path)))
                took.append(time.perf_counter() - begun)
                assert all(outcome.ok and outcome.engine == "sglang 0.5.21" for outcome in outcomes)
        finally:
            servers.kill()
    low, median, high = min(took), statistics.median(took), max(took)
    rows = [(WORKERS, f"{median:.2f}", f"{low:.2f} to {high:.2f}", f"{median / ANSWER_SEC:.2f}", MOST_SEC)]
    show(table("start and verify, s", ("workers", "median", "range", "x one answer", "bound"), rows))
    save("profiling", rows, took_sec=took)
    assert high <= MOST_SEC
