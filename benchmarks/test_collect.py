"""Compare `collect --ray` of four nodes with rsync over ssh, for the same bytes.

Needs Ray, sshd and rsync: `PYTHONPATH=. .envs/ray/bin/python -m pytest benchmarks/test_collect.py`. BENCH_MB
is the size of each node's logs; the bound is for 1000.
"""

import json
import os
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import pytest
from rounds import HERE, ROUNDS, Spread, save, table

from sglang_instrument.testing import synthetic_run

sys.path.insert(0, str(HERE.parent / "tests/support"))
from ssh_server import HOSTS, LACKING, PATH, ssh_server

MEGABYTES = int(os.environ.get("BENCH_MB", "100"))
NODES = 4
ROUNDS = min(ROUNDS, 3)
LEAST_SPEED, MOST_SENT = 0.7, 0.1
STEP = {"steps": 1, "workers": 2, "requests": 512}

#: Collect once, as the command does; print the seconds and the bytes. Ray is connected and its workers run.
COLLECTING = """
import json, sys, time
from pathlib import Path
from sglang_instrument.collect.by_ray import RayNodes, connect
from sglang_instrument.collect.collected import CollectedFolder
from sglang_instrument.collect.gather import gather

address, where, here = sys.argv[1:]
nodes = RayNodes(connect(address, {}))
gather("$NODE_DISK/none", nodes, CollectedFolder(Path(here + "-warm")), lambda *_: None)
begun = time.perf_counter()
outcome = gather(where, nodes, CollectedFolder(Path(here)), lambda *_: None)
took = time.perf_counter() - begun
assert not outcome.missing, outcome.missing
reports = outcome.nodes.values()
sent, new = (sum(getattr(one, name) for one in reports) for name in ("sent_bytes", "new_bytes"))
print(json.dumps({"sec": took, "sent": sent, "new": new}))
"""


@pytest.fixture
def disks(tmp_path):
    """Make a folder of logs for each node, of different bytes."""
    made = []
    for node in range(NODES):
        disk = tmp_path / f"disk{node}"
        first = synthetic_run(disk / "made", seed=node, **STEP)
        size = sum(path.stat().st_size for path in first.rglob("*.jsonl"))
        for copy in range(max(1, round(MEGABYTES * 1e6 / size))):
            for path in first.rglob("worker_*.jsonl"):
                target = disk / "run" / f"step_{copy}" / f"{path.stem}{node}.jsonl"
                target.parent.mkdir(parents=True, exist_ok=True)
                # A first line of its own makes it another file to `collect`.
                target.write_bytes(b'{"copy": "%d %s"}\n' % (copy, path.name.encode()) + path.read_bytes())
        shutil.rmtree(first)
        made.append(disk)
    return made


def test_collect_is_about_as_fast_as_rsync_and_sends_a_tenth(tmp_path, disks, show):
    pytest.importorskip("ray", reason="Ray is not installed here; tests/environments/ray.sh makes a place")
    if LACKING:
        pytest.skip(f"no {LACKING}; tests/environments/sshd.sh makes a place")
    total = sum(path.stat().st_size for disk in disks for path in disk.rglob("*.jsonl"))
    rounds = []
    (tmp_path / "ssh").mkdir()
    with ssh_server(tmp_path / "ssh") as environment, cluster_of(disks) as address:
        for number in range(ROUNDS):
            sec = {
                name: rsync(environment, disks, tmp_path / f"{name}{number}", *options)
                for name, options in WAYS.items()
            }
            rounds.append({"rsync": sec, **collect(address, tmp_path / f"ray{number}")})
            assert rounds[-1]["new"] == total
            for below in [*WAYS, "ray"]:
                shutil.rmtree(tmp_path / f"{below}{number}")
    rows = []
    for name in WAYS:
        speed = Spread.of(
            [measured_round["rsync"][name] / measured_round["sec"] for measured_round in rounds]
        )
        rate = Spread.of([total / measured_round["rsync"][name] / 1e6 for measured_round in rounds])
        rows.append(
            (name, f"{rate.median:.0f}", f"{speed.median:.2f}", f"{speed.low:.2f} .. {speed.high:.2f}")
        )
    sent = max(measured_round["sent"] / measured_round["new"] for measured_round in rounds)
    columns = ("rsync", "its MB/s", "speed of collect / rsync", "quartiles")
    show(
        table(f"{NODES} x {total / NODES / 1e6:.0f} MB; collect sends {sent:.3f} of the bytes", columns, rows)
    )
    save("collect", rows, rounds=rounds)
    assert sent <= MOST_SENT
    assert (
        Spread.of(
            [measured_round["rsync"]["plain"] / measured_round["sec"] for measured_round in rounds]
        ).median
        >= LEAST_SPEED
    )


WAYS = {"plain": ["-rt"], "compressed": ["-rtz"]}


def rsync(environment, disks, here, *options):
    """Return the seconds in which rsync copies all disks at once."""

    def copy(number):
        source = f"{HOSTS[0]}:{disks[number]}/run/"
        target = here / str(number)
        target.mkdir(parents=True)
        subprocess.run(
            [shutil.which("rsync", path=PATH), *options, source, f"{target}/"], env=environment, check=True
        )

    begun = time.perf_counter()
    with ThreadPoolExecutor(NODES) as threads:
        list(threads.map(copy, range(NODES)))
    return time.perf_counter() - begun


def collect(address, here):

    command = [sys.executable, "-c", COLLECTING, address, "$NODE_DISK/run", str(here)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    shutil.rmtree(f"{here}-warm", ignore_errors=True)
    return json.loads(done.stdout.splitlines()[-1])


@contextmanager
def cluster_of(disks):
    """Start a Ray cluster with a node for each disk, which tasks find as $NODE_DISK; yield its address."""
    from ray.cluster_utils import Cluster

    started = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    try:
        for disk in disks:
            started.add_node(num_cpus=1, env_vars={"NODE_DISK": str(disk)})
        yield started.address
    finally:
        started.shutdown()
