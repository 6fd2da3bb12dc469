"""Run a real sshd on the loopback addresses, from Debian's packages."""

import getpass
import os
import shutil
import subprocess
import time
from contextlib import contextmanager
from pathlib import Path

from sglang_instrument.free_ports import free_port

ENVIRONMENT = Path(__file__).parents[2] / ".envs/sshd"
PLACES = [str(ENVIRONMENT / below) for below in ("usr/sbin", "usr/bin", "usr/lib/openssh")]
PATH = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", *PLACES])
UNPACKED = [str(path) for path in (ENVIRONMENT / "usr/lib").glob("*-linux-gnu")]
LIBRARIES = os.pathsep.join([*filter(None, [os.environ.get("LD_LIBRARY_PATH")]), *UNPACKED])
LACKING = [name for name in ("sshd", "ssh", "ssh-keygen", "rsync") if shutil.which(name, path=PATH) is None]
HOSTS = ("127.0.0.1", "127.0.0.2")


@contextmanager
def ssh_server(folder):
    """Start an sshd on the loopback addresses; yields the environment in which rsync reaches it."""
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
    port = free_port()
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
        f"ssh -p {port} -l {getpass.getuser()} -i {folder / 'user'} -o BatchMode=yes -o ConnectTimeout=60 "
        "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR"
    )
    try:
        until = time.monotonic() + 300  # the machine may be busy
        while time.monotonic() < until and server.poll() is None:
            if subprocess.run([*client.split(), HOSTS[0], "true"], env=environment).returncode == 0:
                break
            time.sleep(0.2)
        else:
            raise RuntimeError(f"sshd does not run here: {(folder / 'log').read_text()[-300:]}")
        yield {**environment, "RSYNC_RSH": client}
    finally:
        server.kill()
        server.wait()
