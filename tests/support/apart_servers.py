"""Start a prefill server, a decode server and SGLang's router before them; the cache really goes across."""

import os
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest
from own_group import end_group
from routed_engines import ROUTERS
from sglang_server import DEADLINE_SEC, Server, start_server

from sglang_instrument.free_ports import free_port

ROUTER = ROUTERS / "router-0.3.2"
TRANSPORT = Path(__file__).parent / "memory_transport"
#: SGLang's default for retractions keeps the cache in memory of the host that only CUDA can register.
ARGUMENTS = {"prefill": (), "decode": ("--disaggregation-decode-retraction-backup", "none")}


@contextmanager
def apart_servers(folder: Path, environment: dict[str, str]) -> Iterator[tuple[str, dict[str, Server]]]:
    """Yield the router's address, and the server of each role; end all of them."""
    bootstrap = free_port()

    def start(role: str) -> Server:
        (scratch := folder / role).mkdir()
        mode = ("--disaggregation-mode", role, "--disaggregation-bootstrap-port", str(bootstrap))
        return start_server(scratch, environment, *mode, "--max-total-tokens=4096", *ARGUMENTS[role])

    with pytest.MonkeyPatch.context() as patch, ThreadPoolExecutor(2) as pool:
        patch.setenv("PYTHONPATH", os.pathsep.join([str(TRANSPORT), os.environ.get("PYTHONPATH", "")]))
        starting = {role: pool.submit(start, role) for role in ARGUMENTS}
    servers = {role: future.result() for role, future in starting.items() if future.exception() is None}
    try:
        for future in starting.values():
            future.result()
        with _router(folder, servers, bootstrap) as url:
            yield url, servers
    finally:
        for server in servers.values():
            server.kill()  # after SIGTERM its scheduler keeps a core busy for half a minute


@contextmanager
def _router(folder: Path, servers: dict[str, Server], bootstrap: int) -> Iterator[str]:
    port, log = free_port(), folder / "router.txt"
    command = [sys.executable, "-W", "ignore", "-m", "sglang_router.launch_router", "--host", "127.0.0.1"]
    command += ["--port", str(port), "--prometheus-port", str(free_port()), "--disable-retries"]
    command += [
        "--pd-disaggregation",
        "--prefill",
        servers["prefill"].url,
        str(bootstrap),
        "--decode",
        servers["decode"].url,
    ]
    with log.open("wb") as printed:
        process = subprocess.Popen(
            command,
            env={**os.environ, "PYTHONPATH": str(ROUTER)},
            stdout=printed,
            stderr=printed,
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + DEADLINE_SEC
        while not _is_ready(port):
            assert process.poll() is None, log.read_text(errors="replace")
            assert time.monotonic() < deadline, log.read_text(errors="replace")
            time.sleep(0.2)
        yield f"http://127.0.0.1:{port}"
    finally:
        end_group(process)


def _is_ready(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readiness", timeout=60) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False
