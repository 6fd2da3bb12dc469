"""Measure how many records a SIGKILL at a random time loses."""

import json
import random
import statistics
import struct
import subprocess
import sys
import time
from pathlib import Path

import pytest
from killed import EVENTS_PER_SEC
from rounds import HERE, save, table

KILLS = 20
MOST_MS = {"buffered": 150, "line": 0}


def lost_records(durability, folder, after_sec):
    """Kill a process, and return how many acknowledged records its log lacks, and how many there were."""
    acknowledged = folder / "acknowledged"
    acknowledged.write_bytes(bytes(16))
    command = [sys.executable, str(HERE / "killed.py"), durability, str(folder), str(acknowledged)]
    process = subprocess.Popen(command, cwd=HERE, stderr=subprocess.DEVNULL)
    while not read(acknowledged):
        assert process.poll() is None
        time.sleep(0.01)
    time.sleep(after_sec)
    process.kill()
    process.wait()
    (path,) = Path(folder).rglob("worker_0.jsonl")
    *whole, last = path.read_bytes().split(b"\n")
    numbers = [json.loads(line)["extra"].get("number") for line in whole[1:]]
    assert numbers == list(range(len(numbers)))
    return read(acknowledged) - len(numbers), read(acknowledged), bool(last)


def read(acknowledged):
    return struct.unpack("<q", acknowledged.read_bytes()[:8])[0]


@pytest.mark.parametrize("durability", ["buffered", "line"])
def test_a_kill_loses_little(durability, show, tmp_path):
    moments = random.Random(1)
    losses = []
    for number in range(KILLS):
        folder = tmp_path / str(number)
        folder.mkdir()
        lost, _, _ = lost_records(durability, folder, moments.uniform(0.2, 1.2))
        losses.append(max(0, lost) / EVENTS_PER_SEC * 1000)
    most = MOST_MS[durability]
    rows = [(durability, f"{statistics.median(losses):.0f}", f"{max(losses):.0f}", most)]
    show(
        table(f"SIGKILL, {KILLS} times: ms of records lost", ("durability", "median", "most", "bound"), rows)
    )
    save(f"kills_{durability}", rows, losses_ms=losses)
    assert max(losses) <= most
