"""Start servers by a person's command, wait until they answer, and end them whatever happens."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from sglang_instrument.errors import InstrumentError
from sglang_instrument.free_ports import free_port
from sglang_instrument.twin.servers import keeper
from sglang_instrument.twin.servers.gpus import demand_free, shares, visible_gpus

_WAIT_SEC: Final = 1800.0
_LOOK_EVERY_SEC: Final = 0.25
_ENDING_SEC: Final = 30.0
_SHOWN_CHARACTERS: Final = 300
_PARALLEL: Final = ("--tp", "--tp-size", "--tensor-parallel-size")
_ROUTER: Final = "sglang_router.launch_router"

#: Says what is waited for.
Say = Callable[[str], None]


@contextmanager
def launched(
    command: Sequence[str],
    servers: int,
    environment: Mapping[str, str],
    output: Path,
    say: Say = lambda _: None,
    router: str | None = None,
) -> Iterator[list[str]]:
    """Yield the addresses of servers that a command starts, or of the router before them; then end them.

    Args:
        command: Starts a server, such as `python -m sglang.launch_server ...`. A free port is added, unless
            it names one and only one server is started.
        servers: How many.
        environment: Variables that the servers get beside those of this process.
        output: A folder for what they print.
        say: Told what is waited for.
        router: A policy: the servers stand behind a router of `sglang_router`.

    Raises:
        InstrumentError: The command is not there, a server ends, or does not answer for half an hour, or the
            memory of a GPU is in use.
    """
    gpus = [] if _option(command, ("--device",)) == "cpu" else visible_gpus()
    demand_free(gpus)
    per_server = int(_option(command, _PARALLEL) or 1)
    output.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack:
        urls = []
        for number, devices in enumerate(shares(gpus, servers, per_server)):
            variables = {} if devices is None else {"CUDA_VISIBLE_DEVICES": devices}
            printed = output / f"server_{number}.txt"
            full, url = _with_address(command, servers)
            process = stack.enter_context(_kept(full, {**environment, **variables}, printed))
            _wait(process, url, printed, f"server {number + 1} of {servers}", say)
            urls.append(url)
        if router is not None:
            urls = [stack.enter_context(_routed(command[0], urls, router, output, say))]
        yield urls


@contextmanager
def _routed(python: str, urls: Sequence[str], policy: str, output: Path, say: Say) -> Iterator[str]:
    """Yield the address of a router before servers, which the Python of their command runs."""
    url, printed = f"http://127.0.0.1:{free_port()}", output / "router.txt"
    host, port = "127.0.0.1", url.rpartition(":")[2]
    command = [python, "-m", _ROUTER, "--host", host, "--port", port, "--policy", policy]
    command += ["--prometheus-port", str(free_port()), "--worker-urls", *urls]
    with _kept(command, {"SGLANG_INSTRUMENT": "0"}, printed) as process:
        _wait(process, url, printed, "the router", say)
        yield url


def _option(command: Sequence[str], names: Sequence[str]) -> str | None:
    """Return the value of an option of a command."""
    for place, word in enumerate(command):
        name, equals, value = word.partition("=")
        if name in names:
            return value if equals else next(iter(command[place + 1 :]), None)
    return None


def _with_address(command: Sequence[str], servers: int) -> tuple[list[str], str]:
    """Return a command with a host and a port, and the address."""
    host, port = _option(command, ("--host",)), _option(command, ("--port",))
    if port is not None and servers > 1:
        raise InstrumentError(
            f"{servers} servers cannot all listen at port {port}: leave --port out of --launch"
        )
    full = list(command)
    if host is None:
        full += ["--host", host := "127.0.0.1"]
    if port is None:
        full += ["--port", port := str(free_port())]
    return full, f"http://{'127.0.0.1' if host == '0.0.0.0' else host}:{port}"  # noqa: S104


@contextmanager
def _kept(
    command: Sequence[str], environment: Mapping[str, str], printed: Path
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command below a keeper, which ends all of its processes when this block or this process ends."""
    if shutil.which(command[0]) is None:
        raise InstrumentError(f"no such program: {command[0]!r}")
    with printed.open("wb") as file:
        process = subprocess.Popen(  # noqa: S603 - the command that a person gave
            [sys.executable, "-S", "-E", keeper.__file__, *command],
            env={**os.environ, **environment},
            stdin=subprocess.PIPE,
            stdout=file,
            stderr=file,
            start_new_session=True,  # Ctrl-C is for the twin, which then ends its servers
        )
    assert process.stdin is not None  # noqa: S101
    try:
        yield process
    finally:
        process.stdin.close()  # the keeper reads the end of the pipe
        try:
            process.wait(_ENDING_SEC)
        except subprocess.TimeoutExpired:
            process.terminate()
            process.wait()


def _wait(process: subprocess.Popen[bytes], url: str, printed: Path, what: str, say: Say) -> None:
    """Wait until a server answers."""
    begun = time.monotonic()
    while not _is_healthy(url):
        waited = time.monotonic() - begun
        if process.poll() is not None or waited > _WAIT_SEC:
            lines = printed.read_bytes().decode(errors="replace").split("\n")
            last = next((line.strip() for line in reversed(lines) if line.strip()), "nothing")
            ended = "ended before it answered" if process.poll() is not None else "does not answer"
            raise InstrumentError(
                f"{what} {ended}; {printed} has what it printed, at last: {last[:_SHOWN_CHARACTERS]}"
            )
        say(f"waiting for {what}: {waited:.0f} s")
        time.sleep(_LOOK_EVERY_SEC)


def _is_healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(url + "/health", timeout=5) as reply:  # noqa: S310 - an address of ours
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError, ValueError):
        return False


def split_command(text: str) -> list[str]:
    """Return the words of a command.

    Raises:
        InstrumentError: It is empty, or a quote is not closed.
    """
    try:
        words = shlex.split(text)
    except ValueError as reason:
        raise InstrumentError(f"--launch {text!r}: {reason}") from None
    if not words:
        raise InstrumentError("--launch needs the command that starts a server")
    return words
