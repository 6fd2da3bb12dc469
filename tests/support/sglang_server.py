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
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from own_group import end_group

from sglang_instrument.demo.cpu_platform import write_plugin
from sglang_instrument.demo.model import ensure_model
from sglang_instrument.free_ports import free_port

#: Without a limit, the cache of each scheduler is gigabytes, which the system must clear.
ARGUMENTS = [
    *("--device=cpu", "--dtype=float32", "--attention-backend=torch_native", "--sampling-backend=pytorch"),
    *("--grammar-backend=none", "--disable-cuda-graph"),
    *("--chunked-prefill-size=512", "--mem-fraction-static=0.2", "--context-length=512"),
    "--max-total-tokens=8192",
    *("--skip-server-warmup", "--sleep-on-idle", "--log-level=error", "--host=127.0.0.1"),
]
IN_TURN = "--disable-overlap-schedule"  # launch a batch only after the previous one is processed
DEADLINE_SEC = 1200  # starting takes minutes on a busy machine


def model_of_the_demo():
    """Return the folder of the demo's model in the user's cache, which the demo uses, too."""
    return ensure_model(Path.home() / ".cache/sglang-instrument")


@dataclass
class Server:
    """A running server that listens at `port`; `errors` is the file with its output."""

    process: subprocess.Popen
    port: int
    errors: Path
    command: list
    environment: dict

    @property
    def url(self):
        return f"http://127.0.0.1:{self.port}"

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

        processes = psutil.Process(self.process.pid).children(recursive=True)
        return {child.pid: " ".join(child.cmdline()) for child in processes}

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

    def signal(self, number):
        """Send a signal to all of its processes."""
        os.killpg(self.process.pid, number)

    def restart(self):
        """Start a server that has ended, at the same port; wait until it answers."""
        self.kill()
        self.process = launch(self.command, self.environment, self.errors)
        wait_until_it_answers(self)


def instrumented(folder, **more):
    """Return variables that switch us on in a server, which then logs to the run `folder/logs/run`."""
    clean = {name: "" for name in os.environ if name.startswith("SGLANG_INSTRUMENT")}
    place = {"SGLANG_INSTRUMENT_LOG_DIR": str(folder / "logs"), "EXPERIMENT_NAME": "run"}
    return {**clean, "SGLANG_INSTRUMENT": "1", **place, **more}


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


@contextmanager
def start_servers(folder, count, environment, *arguments):
    """Start servers at once, each in a folder of its own below `folder`; yield them, then end them."""
    scratch = [folder / f"server_{number}" for number in range(count)]
    for folder_of_server in scratch:
        folder_of_server.mkdir()
    with ThreadPoolExecutor(count) as pool:
        starting = [
            pool.submit(start_server, folder_of_server, environment, *arguments)
            for folder_of_server in scratch
        ]
    started = [server.result() for server in starting if server.exception() is None]
    try:
        yield [server.result() for server in starting]
    finally:
        for server in started:
            server.stop()


class PortTakenError(AssertionError):
    """The server did not start, because another process listens at one of its ports."""


def _start_server(scratch, environment, *arguments, overlap):
    write_plugin(scratch)
    path = os.pathsep.join(filter(None, (str(scratch), os.environ.get("PYTHONPATH"))))
    port = free_port()
    command = [sys.executable, "-W", "ignore", "-m", "sglang.launch_server"]
    command += ["--model-path", str(model_of_the_demo()), "--port", str(port), *ARGUMENTS, *arguments]
    command += [] if overlap else [IN_TURN]
    variables = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **environment}
    errors = scratch / "stderr.txt"
    server = Server(launch(command, variables, errors), port, errors, command, variables)
    wait_until_it_answers(server)
    return server


def launch(command, environment, errors):
    """Start a server's process in a group of its own."""
    with errors.open("ab") as stream:
        return subprocess.Popen(
            command, env=environment, cwd=errors.parent, stdout=stream, stderr=stream, start_new_session=True
        )


def wait_until_it_answers(server):
    """Wait until a server answers; kill it if it does not."""
    deadline = time.monotonic() + DEADLINE_SEC
    try:
        while not server.is_up():
            if server.process.poll() is not None or time.monotonic() > deadline:
                printed = server.errors.read_text(errors="replace")
                taken = "EADDRINUSE" in printed or "address already in use" in printed
                kind = PortTakenError if taken else AssertionError
                raise kind(f"the server did not start:\n{printed[-4000:]}")
            time.sleep(0.2)
    except BaseException:  # a Ctrl-C too
        server.kill()
        raise
