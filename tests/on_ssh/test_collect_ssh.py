"""`collect --ssh` brings a run by rsync from real sshds on the loopback addresses, one a node."""

import getpass
import json
import os
import shutil
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

ENVIRONMENT = Path(__file__).parents[2] / ".envs/sshd"
PLACES = [str(ENVIRONMENT / below) for below in ("usr/sbin", "usr/bin", "usr/lib/openssh")]
PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", *PLACES])
UNPACKED = [str(path) for path in (ENVIRONMENT / "usr/lib").glob("*-linux-gnu")]
LIBRARIES = os.pathsep.join([*filter(None, [os.environ.get("LD_LIBRARY_PATH")]), *UNPACKED])
LACKING = [name for name in ("sshd", "ssh", "ssh-keygen", "rsync") if shutil.which(name, path=PATH) is None]
pytestmark = pytest.mark.skipif(
    bool(LACKING), reason=f"no {LACKING}; tests/environments/sshd.sh makes a place"
)
HOSTS = ("127.0.0.1", "127.0.0.2")


@pytest.fixture(scope="module")
def ssh(tmp_path_factory):
    """Start an sshd on the loopback addresses; yields the environment in which rsync reaches it."""
    folder = tmp_path_factory.mktemp("ssh")
    environment = {**os.environ, "PATH": PATH, "LD_LIBRARY_PATH": LIBRARIES}
    for name in ("host", "user"):
        command = [
            shutil.which("ssh-keygen", path=PATH),
            "-q",
            "-t",
            "ed25519",
            "-N",
            "",
            "-f",
            folder / name,
        ]
        subprocess.run(command, env=environment, check=True)
    shutil.copy(folder / "user.pub", folder / "authorized")
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    options = {
        "HostKey": folder / "host",
        "AuthorizedKeysFile": folder / "authorized",
        "PidFile": "none",
        "StrictModes": "no",
        "UsePAM": "no",
        "SetEnv": f'"PATH={PATH}"' + (f' "LD_LIBRARY_PATH={LIBRARIES}"' if LIBRARIES else ""),
    }
    (folder / "config").write_text(
        "".join(f"{key} {value}\n" for key, value in options.items())
        + "".join(f"ListenAddress {host}:{port}\n" for host in HOSTS)
    )
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(parents=True, exist_ok=True)  # where sshd of root locks itself in
    with (folder / "log").open("w") as said:
        command = [shutil.which("sshd", path=PATH), "-D", "-e", "-f", folder / "config"]
        server = subprocess.Popen(command, env=environment, stderr=said)
    client = (
        f"ssh -p {port} -l {getpass.getuser()} -i {folder / 'user'} -o BatchMode=yes -o ConnectTimeout=5 "
        "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
    )
    try:
        until = time.monotonic() + 20
        while time.monotonic() < until and server.poll() is None:
            if subprocess.run([*client.split(), HOSTS[0], "true"], env=environment).returncode == 0:
                break
            time.sleep(0.2)
        else:
            pytest.skip(f"sshd does not run here: {(folder / 'log').read_text()[-300:]}")
        yield {**environment, "RSYNC_RSH": client}
    finally:
        server.kill()
        server.wait()


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
