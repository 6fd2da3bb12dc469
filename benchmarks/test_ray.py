"""Compare Ray on two nodes of one CPU with two processes of this machine; measure how cost and memory grow.

Needs Ray: `.envs/ray/bin/python -m pytest benchmarks/test_ray.py`. BENCH_EVENTS=20000000 takes half an hour.
"""

import json
import os
import subprocess
import sys

import pytest
from rounds import HERE, ROUNDS, Spread, save, table

from sglang_instrument.testing import synthetic_run

EVENTS = int(os.environ.get("BENCH_EVENTS", "1000000"))
EVENTS_A_STEP = 13_400
STEPS = 20  # that are made; the others are links to their files
ROUNDS = min(ROUNDS, 3)
LEAST_SPEED = 0.8  # of the local processes'
MOST_GROWTH = 0.15  # of the CPU seconds of a million events
STEPS_OF_ALL, STEPS_OF_PIECE, WORKERS = 10_000, 48, 256  # a piece has at most 12,500 files
MOST_SEC, MOST_MB = 120, 1024
NODES = 64

#: Read a run once; print seconds, CPU seconds of this process and its children, and records.
READING = """
import json, os, resource, sys, time
from pathlib import Path
from sglang_instrument.analysis.executors.local import LocalExecutor
from sglang_instrument.analysis.executors.on_ray import RayExecutor
from sglang_instrument.analysis.run.digest_of_run import digest_files

folder, address = Path(sys.argv[1]), sys.argv[2]
executor = RayExecutor(folder, address) if address else LocalExecutor(folder, 2)
if address:  # start the workers, as a first command of a session does
    digest_files(executor, executor.list_files()[:2])
begun = time.perf_counter()
files, digest = digest_files(executor, executor.list_files())
sec = time.perf_counter() - begun
used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
cpu_sec = sum(one.ru_utime + one.ru_stime for one in used)
print(json.dumps({"sec": sec, "cpu_sec": cpu_sec, "records": sum(sum(file.records) for file in files)}))
"""


def read(folder, address=""):
    command = [sys.executable, "-c", READING, str(folder), address]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout.splitlines()[-1])


def made_run(folder, events):
    """Return the folder of a run with about so many events."""
    steps = max(1, round(events / EVENTS_A_STEP))
    made = min(STEPS, steps)
    synthetic_run(folder, steps=made, workers=8, requests=64)
    for step in range(made + 1, steps + 1):
        target = folder / f"step_{step}"
        target.mkdir()
        for path in (folder / f"step_{(step - 1) % made + 1}").iterdir():
            (target / path.name).hardlink_to(path)
    return folder


@pytest.fixture
def cluster():
    pytest.importorskip("ray", reason="Ray is not installed here; tests/environments/ray.sh makes a place")
    from ray.cluster_utils import Cluster

    head = {"num_cpus": 1, "include_dashboard": False}
    started = Cluster(initialize_head=True, head_node_args=head)
    started.add_node(num_cpus=1)
    yield started
    started.shutdown()


def test_two_nodes_of_one_cpu_read_about_as_fast_as_two_processes(tmp_path, cluster, show):
    folder = made_run(tmp_path / "run", EVENTS)
    rounds = [{"local": read(folder), "ray": read(folder, cluster.address)} for _ in range(ROUNDS)]
    speed = Spread.of([costs["local"]["sec"] / costs["ray"]["sec"] for costs in rounds])
    rows = [("ray / local", f"{speed.median:.2f}", f"{speed.low:.2f} .. {speed.high:.2f}", LEAST_SPEED)]
    columns = ("", "speed", "quartiles", "bound")
    show(table(f"{rounds[0]['local']['records']:,} records, two processes", columns, rows))
    save("ray", rows, rounds=rounds)
    assert speed.median >= LEAST_SPEED


def test_the_cpu_time_of_a_million_events_does_not_grow_with_the_run(tmp_path, show):
    rows = []
    for events in (EVENTS // 4, EVENTS, EVENTS * 4):
        measured = read(made_run(tmp_path / str(events), events))
        rows.append((f"{measured['records']:,}", measured["cpu_sec"] / measured["records"] * 1e6))
    show(table("local, CPU seconds of a million records", ("records", "CPU s"), rows))
    save("ray_growth", rows)
    costs = [cost for _, cost in rows]
    assert max(costs) <= min(costs) * (1 + MOST_GROWTH)


def test_the_caller_joins_the_pieces_of_a_billion_events(tmp_path, show):
    """15 requests of about 27 events in each step of each worker; tasks on the nodes reduce the pieces."""
    script = [sys.executable, str(HERE / "reducing.py")]
    subprocess.run([*script, "make", str(tmp_path), str(NODES), str(WORKERS), "15"], check=True)
    rows, measured = [], {}
    pieces = STEPS_OF_ALL // STEPS_OF_PIECE
    for what, arguments in (("reduce", (STEPS_OF_PIECE, WORKERS)), ("join", (pieces,))):
        command = [*script, what, str(tmp_path), *map(str, arguments)]
        done = subprocess.run(command, check=True, capture_output=True, text=True)
        measured[what] = answer = json.loads(done.stdout)
        numbers = [f"{answer[key]:,.1f}" for key in ("seconds", "cpu_sec", "peak_mb")]
        rows.append((what, f"{answer['files']:,}", f"{answer['events']:,}", *numbers))
    columns = ("", "files", "events", "seconds", "CPU s", "peak MB")
    show(table("a piece on a node; all pieces at the caller", columns, rows))
    save("ray_reduce", rows, measured=measured)
    assert measured["join"]["seconds"] <= MOST_SEC
    assert measured["join"]["peak_mb"] <= MOST_MB
