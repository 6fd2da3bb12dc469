"""`collect --ssh` brings a run by rsync from real sshds on the loopback addresses, one a node."""

import json
import subprocess
import sys

import pytest
from ssh_server import LACKING, ssh_server

pytestmark = pytest.mark.skipif(
    bool(LACKING), reason=f"no {LACKING}; tests/environments/sshd.sh makes a place"
)


@pytest.fixture(scope="module")
def ssh(tmp_path_factory):
    with ssh_server(tmp_path_factory.mktemp("ssh")) as environment:
        yield environment


def collect(environment, run, here, *way, code=0):
    command = [
        sys.executable,
        "-m",
        "sglang_instrument.cli.main",
        "collect",
        str(run),
        "-o",
        str(here),
        "--json",
    ]
    done = subprocess.run([*command, *way], env=environment, capture_output=True, text=True)
    assert done.returncode == code, done.stderr
    return json.loads(done.stdout)


def log(folder, path, *lines, torn=""):
    target = folder / path
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("a") as file:
        file.write("".join(f"{line}\n" for line in lines) + torn)


def test_a_run_comes_by_ssh_and_a_host_that_is_gone_is_named(ssh, tmp_path):
    run, here = tmp_path / "a run", tmp_path / "here"
    log(run, "step_1/worker_0.jsonl", "a0", torn='{"half')
    log(run, "step_1/worker_1.jsonl", "b0")
    # Both addresses lead to the same disk: its files come once.
    answer = collect(ssh, run, here, "--ssh", "127.0.0.[1-2],127.0.0.9", code=1)
    assert (here / "step_1/worker_0.jsonl").read_text() == "a0\n"
    assert (answer["files"], answer["missing"], answer["renamed"]) == (2, [], [])
    errors = {node["name"]: node["error"] for node in answer["nodes"]}
    assert [name for name, error in errors.items() if error] == ["127.0.0.9"]


def test_what_grew_comes_by_the_next_command_and_is_stored_once(ssh, tmp_path):
    run, here = tmp_path / "run", tmp_path / "here"
    log(run, "step_1/worker_0.jsonl", *["a line"] * 1000)
    (tmp_path / "hosts").write_text("127.0.0.1 slots=8\n")
    collect(ssh, run, here, "--hostfile", str(tmp_path / "hosts"))
    assert (here / "step_1/worker_0.jsonl").stat().st_nlink == 2
    log(run, "step_1/worker_0.jsonl", "more")
    answer = collect(ssh, run, here, "--hostfile", str(tmp_path / "hosts"))
    assert answer["nodes"][0]["new_bytes"] == len("more\n")
    assert (here / "step_1/worker_0.jsonl").read_text() == (run / "step_1/worker_0.jsonl").read_text()
    assert (here / "step_1/worker_0.jsonl").stat().st_nlink == 2
