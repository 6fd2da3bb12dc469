"""Start the real `sglang.launch_server` on the CPU, send requests, and end all of its processes."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from pathlib import Path

from own_group import end_group, free_port

from sglang_instrument.demo.cpu_platform import write_plugin
from sglang_instrument.demo.model import ensure_model

ARGUMENTS = [
    *("--device=cpu", "--dtype=float32", "--attention-backend=torch_native", "--sampling-backend=pytorch"),
    *("--grammar-backend=none", "--disable-cuda-graph"),
    *("--chunked-prefill-size=512", "--mem-fraction-static=0.2", "--context-length=512"),
    *("--skip-server-warmup", "--sleep-on-idle", "--log-level=error", "--host=127.0.0.1"),
]
IN_TURN = "--disable-overlap-schedule"  # launch a batch only after the previous one is processed
DEADLINE_SEC = 1200  # starting takes minutes on a busy machine


def model_of_the_demo():
    """Return the folder of the demo's model in the user's cache, which the demo uses, too."""
    return ensure_model(Path.home() / ".cache/sglang-instrument")


@dataclass
class Server:
    """A running server that listens at `port`."""

    process: subprocess.Popen
    port: int
    errors: Path

    def post(self, path, body, timeout_sec=DEADLINE_SEC):
        """Send a request; return the answer."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            data=json.dumps(body).encode(),
            headers={"Content-Type": "application/json"},
        )
        with urllib.request.urlopen(request, timeout=timeout_sec) as reply:
            return json.loads(reply.read() or "null")

    def is_up(self):
        """Return whether the server answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/health", timeout=60) as reply:
                return reply.status == 200
        except (urllib.error.URLError, OSError):
            return False

    def children(self):
        """Return the process ids of the server's children, by the titles that SGLang sets."""
        import psutil

        found = psutil.Process(self.process.pid).children(recursive=True)
        return {child.pid: " ".join(child.cmdline()) for child in found}

    def stop(self):
        """End the server by SIGTERM, then all of its processes in any case."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(30)
        except subprocess.TimeoutExpired:
            pass
        self.kill()

    def kill(self):
        """Kill all of its processes at once; they are one group."""
        end_group(self.process)


def start_server(scratch, environment, *arguments, overlap=False):
    """Start a server and wait until it answers; `scratch` is a folder for its files.

    A free port may be taken before the server listens, and some ports are chosen by SGLang: then once more.
    """
    for _ in range(3):
        try:
            return _start_server(scratch, environment, *arguments, overlap=overlap)
        except PortTakenError:
            shutil.rmtree(scratch / "logs", ignore_errors=True)
    return _start_server(scratch, environment, *arguments, overlap=overlap)


class PortTakenError(AssertionError):
    """The server did not start, because another process listens at one of its ports."""


def _start_server(scratch, environment, *arguments, overlap):
    write_plugin(scratch)
    path = os.pathsep.join(filter(None, (str(scratch), os.environ.get("PYTHONPATH"))))
    port = free_port()
    command = [sys.executable, "-W", "ignore", "-m", "sglang.launch_server"]
    command += ["--model-path", str(model_of_the_demo()), "--port", str(port), *ARGUMENTS, *arguments]
    command += [] if overlap else [IN_TURN]
    errors = scratch / "stderr.txt"
    with errors.open("wb") as stream:
        process = subprocess.Popen(
            command,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **environment},
            cwd=scratch,
            stdout=stream,
            stderr=stream,
            start_new_session=True,
        )
    server = Server(process, port, errors)
    deadline = time.monotonic() + DEADLINE_SEC
    try:
        while not server.is_up():
            if process.poll() is not None or time.monotonic() > deadline:
                printed = errors.read_text(errors="replace")
                taken = "EADDRINUSE" in printed or "address already in use" in printed
                kind = PortTakenError if taken else AssertionError
                raise kind(f"the server did not start:\n{printed[-4000:]}")
            time.sleep(0.2)
    except BaseException:  # a Ctrl-C too
        server.kill()
        raise
    return server
