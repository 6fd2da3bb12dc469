"""Start the demo's workers, read their reports, and always end all of them."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Generator, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from sglang_instrument.demo.options import DemoOptions, WorkerOrder
from sglang_instrument.errors import InstrumentError

POLL_SEC: Final = 0.2
LAST_LINES: Final = 12
#: Without warnings: SGLang's imports show dozens, about packages that the demo does not use.
_COMMAND: Final = (sys.executable, "-W", "ignore", "-m", "sglang_instrument.demo.worker")

#: A worker's message: `event` is ready, request, step or done; a step has `step`, `tokens` and `reward`.
Report = dict[str, Any]


class DemoError(InstrumentError):
    """A worker died, or no report came for too long."""


@dataclass
class DemoWorker:
    """A worker process, the read end of its pipe, and the file with its output."""

    rank: int
    process: subprocess.Popen[bytes]
    pipe: int
    output: Path
    ready: bool = False
    done: bool = False
    unread: bytes = field(default=b"", repr=False)

    def read(self) -> list[Report]:
        """Return the reports received since the last call; also an empty list at the end of the pipe."""
        *lines, self.unread = (self.unread + os.read(self.pipe, 65536)).split(b"\n")
        reports = [json.loads(line) for line in lines]
        self.ready |= any(report["event"] == "ready" for report in reports)
        self.done |= any(report["event"] == "done" for report in reports)
        return reports


def run_workers(
    options: DemoOptions, *, model: Path, scratch: Path, outputs: Path
) -> Generator[tuple[int, Report], None, None]:
    """Start all workers and yield (rank, report) as they come, until all are done.

    Args:
        options: The run.
        model: Folder of the model.
        scratch: Empty folder for the workers' files; each worker gets its own subfolder.
        outputs: Folder for the output of each worker.

    Raises:
        DemoError: A worker died, or no report came for too long. All workers are killed.
    """
    outputs.mkdir(parents=True, exist_ok=True)
    workers: list[DemoWorker] = []
    try:
        for rank in range(options.workers):
            workers.append(_start(rank, options, model, scratch, outputs))  # noqa: PERF401 - if a start
            # fails, the list must hold the workers started before, so that they are ended
        yield from _follow(workers, options)
    finally:
        for worker in workers:
            _end(worker)


def _start(rank: int, options: DemoOptions, model: Path, scratch: Path, outputs: Path) -> DemoWorker:
    folder = scratch / f"worker_{rank}"
    folder.mkdir()
    output = outputs / f"worker_{rank}.txt"
    read_end, write_end = os.pipe()
    order = WorkerOrder(options, rank, str(model), str(folder), write_end)
    with output.open("wb") as printed:
        process = subprocess.Popen(  # noqa: S603 - a fixed command
            [*_COMMAND, json.dumps(asdict(order))],
            stdout=printed,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            pass_fds=[write_end],
            env=_environment(rank, options, run_id=scratch.name),
            start_new_session=True,  # one process group with its engine, which _end() kills
        )
    os.close(write_end)
    os.set_blocking(read_end, False)
    return DemoWorker(rank, process, read_end, output)


def _environment(rank: int, options: DemoOptions, run_id: str) -> dict[str, str]:
    """Return a worker's environment: with torchrun's variables, and one thread, as cores are few."""
    environment = {
        **os.environ,
        "TORCHELASTIC_RUN_ID": run_id,
        "RANK": str(rank),
        "WORLD_SIZE": str(options.workers),
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
    }
    environment.pop(
        "SGLANG_USE_CPU_ENGINE", None
    )  # would select compiled CPU kernels, not the demo's platform
    return environment


def _follow(workers: list[DemoWorker], options: DemoOptions) -> Iterator[tuple[int, Report]]:
    with selectors.DefaultSelector() as selector:
        for worker in workers:
            selector.register(worker.pipe, selectors.EVENT_READ, worker)
        last_report = time.monotonic()
        while not all(worker.done for worker in workers):
            for key, _ in selector.select(POLL_SEC):
                reports = key.data.read()
                if not reports and key.data.process.poll() is not None:
                    selector.unregister(key.fd)
                for report in reports:
                    last_report = time.monotonic()
                    yield key.data.rank, report
            check_workers(workers, options, silent_sec=time.monotonic() - last_report)


def check_workers(workers: list[DemoWorker], options: DemoOptions, *, silent_sec: float) -> None:
    """Raise an error if the workers cannot finish.

    Args:
        workers: All workers.
        options: The run.
        silent_sec: Seconds since the last report of any worker.

    Raises:
        DemoError: A worker died before it was done, or no report came for too long.
    """
    dead = [worker for worker in workers if worker.process.poll() is not None and not worker.done]
    if dead:
        raise DemoError(_describe_death(dead))
    limit_sec = options.give_up_sec if all(worker.ready for worker in workers) else options.start_sec
    if silent_sec > limit_sec:
        waiting = ", ".join(str(worker.rank) for worker in workers if not worker.done)
        raise DemoError(
            f"no report for {limit_sec:.0f} s; worker {waiting} did not finish and was killed; "
            f"the workers' output is in {workers[0].output.parent}"
        )


def _describe_death(dead: list[DemoWorker]) -> str:
    """Describe one death, a kill first: other workers then fail because the killed one is gone."""
    first = min(dead, key=lambda worker: worker.process.returncode >= 0)
    code = first.process.returncode
    tail = _tail(first.output) if code > 0 else ""  # a killed worker prints nothing about it
    return f"worker {first.rank} {_cause(code)}; its output is in {first.output}{tail}"


def _cause(code: int) -> str:
    return f"was killed by {signal.Signals(-code).name}" if code < 0 else f"exited with code {code}"


def _tail(output: Path) -> str:
    """Return the last lines of a worker's output, each after a newline; may be empty."""
    lines = output.read_text(errors="replace").splitlines()[-LAST_LINES:]
    return "".join(f"\n  | {line}" for line in lines)


def _end(worker: DemoWorker) -> None:
    """Wait for a worker that is done; then kill its process group in any case."""
    if worker.done:
        try:
            worker.process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            pass  # killed below
    try:
        os.killpg(worker.process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass  # nothing of the group is left
    worker.process.wait()
    os.close(worker.pipe)
