"""`collect --ray` brings a run from the disks of a real cluster, whose nodes die and join meanwhile."""

import json
import subprocess
import sys

import pytest

pytest.importorskip("ray", reason="Ray is not installed here; tests/environments/ray.sh makes a place for it")

#: A command that waits after its first bytes, so that a node can die or join in the middle.
WAITING = """
    import json, sys
    from pathlib import Path
    from sglang_instrument.collect import gather as gathering
    from sglang_instrument.collect.by_ray import RayNodes, connect
    from sglang_instrument.collect.collected import CollectedFolder

    gathering.CHUNK_BYTES = 2**16
    waited = False

    def progress(done, total):
        global waited
        if not waited:
            waited = True
            print("begun", flush=True)
            sys.stdin.readline()

    folder = CollectedFolder(Path(HERE))
    outcome = gathering.gather("$NODE_DISK/run", RayNodes(connect(ADDRESS, {})), folder, progress)
    errors = {name: one.error for name, one in outcome.nodes.items()}
    print(json.dumps([errors, sorted(outcome.missing), [file.target for file in folder.files]]))
"""


@pytest.fixture
def cluster(tmp_path):
    """Make a cluster: `cluster("a", "b")` has a node for each of these disks, and one without files."""
    from ray.cluster_utils import Cluster

    started = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "include_dashboard": False})
    started.added = {}

    def add(*names):
        for name in names:
            disk = tmp_path / name
            started.added[name] = started.add_node(num_cpus=1, env_vars={"NODE_DISK": str(disk)})
        return started

    yield add
    started.shutdown()


def log(tmp_path, disk, path, lines):
    target = tmp_path / disk / "run" / path
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("a") as file:
        file.writelines(f'{{"disk": "{disk}", "line": {number}}}\n' for number in range(lines))
    return target


def collect(cluster, folder, code=0):
    command = [sys.executable, "-m", "sglang_instrument.cli.main", "collect", "$NODE_DISK/run", "--json"]
    command += ["-o", str(folder), "--ray", cluster.address]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def test_each_node_gives_its_disk_and_then_only_what_is_new(cluster, tmp_path):
    first = log(tmp_path, "a", "step_1/worker_0.jsonl", 50_000)
    second = log(tmp_path, "b", "step_1/worker_0.jsonl", 10)
    started = cluster("a", "b")
    here = tmp_path / "here"
    answer = collect(started, here)
    assert {path.read_bytes() for path in here.glob("step_1/*")} == {first.read_bytes(), second.read_bytes()}
    assert (answer["missing"], len(answer["renamed"]), len(answer["nodes"])) == ([], 1, 3)
    sent = sum(node["sent_bytes"] for node in answer["nodes"])
    assert 0 < sent < answer["bytes"] / 10
    grown = first.stat().st_size
    log(tmp_path, "a", "step_1/worker_0.jsonl", 3)
    again = collect(started, here)
    assert sum(node["new_bytes"] for node in again["nodes"]) == first.stat().st_size - grown
    assert first.read_bytes() in {path.read_bytes() for path in here.glob("step_1/*")}


def test_a_killed_node_is_named_and_a_late_one_is_asked(cluster, start_script, tmp_path):
    whole = log(tmp_path, "a", "step_1/worker_0.jsonl", 50_000)
    lost = log(tmp_path, "b", "step_1/worker_1.jsonl", 50_000)
    late = log(tmp_path, "late", "step_1/worker_2.jsonl", 10)
    started = cluster("a", "b")
    here = tmp_path / "here"
    source = WAITING.replace("HERE", repr(str(here))).replace("ADDRESS", repr(started.address))
    script = start_script(source, RAY_AUTH_MODE="disabled")
    script.says("begun")
    started.remove_node(started.added["b"], allow_graceful=False)
    cluster("late")
    script.tell("go on")
    errors, missing, files = json.loads(script.wait(timeout=600).stdout.splitlines()[-1])
    assert missing == ["step_1/worker_1.jsonl"]
    assert sum(error is not None for error in errors.values()) == 1
    assert len(errors) == 4
    assert sorted(files) == [f"step_1/worker_{rank}.jsonl" for rank in range(3)]
    for path in (whole, late):
        assert (here / "step_1" / path.name).read_bytes() == path.read_bytes()
    # On another node, with the same disk, the same command goes on.
    started.added["b again"] = started.add_node(num_cpus=1, env_vars={"NODE_DISK": str(tmp_path / "b")})
    answer = collect(started, here)
    assert answer["missing"] == []
    assert (here / "step_1" / lost.name).read_bytes() == lost.read_bytes()


def test_a_wrong_address_is_an_error_at_once(tmp_path):
    command = [
        sys.executable,
        "-m",
        "sglang_instrument.cli.main",
        "collect",
        "run",
        "-o",
        str(tmp_path / "here"),
    ]
    done = subprocess.run([*command, "--ray", "127.0.0.1:1"], capture_output=True, text=True, timeout=600)
    assert done.returncode == 2
    assert "nothing answers at '127.0.0.1:1'" in done.stderr
