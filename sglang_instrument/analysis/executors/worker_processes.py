"""Read batches of a run in worker processes.

Each is started with a plain `python -c`. `multiprocessing` would import the user's script again, and forking
is unsafe because polars starts threads at import.
"""

import os
import pickle
import select
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import IO, Final

import msgspec
import polars as pl

from sglang_instrument.analysis.executors.executor import BatchResult, Job
from sglang_instrument.analysis.reading.files import File

#: One polars thread per process, since there is a process for each core. The allocator keeps memory between
#: batches: getting it from the kernel again, page by page, would take a fifth of the time.
SETTINGS: Final = {
    "PYTHONSAFEPATH": "1",  # import nothing from the current folder
    "SGLANG_INSTRUMENT": "0",  # a process that reads logs must not write one
    "POLARS_MAX_THREADS": "1",
    "MALLOC_TOP_PAD_": str(64 * 1024 * 1024),
    "MALLOC_MMAP_THRESHOLD_": str(1024**3),
    "MALLOC_TRIM_THRESHOLD_": str(4 * 1024**3),
    "_RJEM_MALLOC_CONF": "dirty_decay_ms:-1,muzzy_decay_ms:-1",
}
# Without garbage collection from the first import on: it is a tenth of the cost of starting a process.
_PROGRAM: Final = """
import gc, sys
gc.disable()
from sglang_instrument.analysis.executors.worker_processes import main
main(*sys.argv[1:])
"""
_DONE: Final = b"done with batch "
_TASK: Final = "task.pickle"


def read_in_processes(
    folder: Path, batches: Sequence[list[File]], job: Job, processes: int
) -> Iterator[tuple[int, BatchResult]]:
    """Yield the number and the result of each batch, in the order in which they finish.

    This process is one of them if its polars has one thread, as in a command. With several threads it would
    read more slowly than the others, and only waits. At the end it reads what no worker process finished.
    """
    is_reader = pl.thread_pool_size() == 1
    left = set(range(len(batches)))
    with (
        tempfile.TemporaryDirectory() as scratch,
        _worker_processes(folder, scratch, (job, list(batches)), processes - is_reader) as reports,
    ):
        for number in range(len(batches)) if is_reader else ():
            if _takes(Path(scratch, str(number))):
                left.discard(number)
                yield number, job.run(folder, batches[number])
            yield from _finished(reports, left, scratch, at_once=True)
        yield from _finished(reports, left, scratch)
    for number in sorted(left):
        yield number, job.run(folder, batches[number])


def _finished(
    reports: IO[bytes], left: set[int], scratch: str, at_once: bool = False
) -> Iterator[tuple[int, BatchResult]]:
    """Yield the results that worker processes report: until the last one ends, or those that came already."""
    while not at_once or select.select([reports], [], [], 0)[0]:
        line = reports.readline()
        if not line:
            return
        number = int(line.removeprefix(_DONE)) if line.startswith(_DONE) else -1
        if number in left:
            left.discard(number)
            yield number, _load(Path(scratch, str(number)))


@contextmanager
def _worker_processes(folder: Path, scratch: str, task: object, number: int) -> Iterator[IO[bytes]]:
    """Start processes that share a task, and yield what they report: a line for each batch."""
    Path(scratch, _TASK).write_bytes(pickle.dumps(task))
    read_end, write_end = os.pipe()
    with ExitStack() as stack, os.fdopen(read_end, "rb", buffering=0) as reports:
        with os.fdopen(
            write_end, "wb"
        ) as stdout:  # closed here, so that the pipe ends with the last worker process
            for _ in range(number):
                stack.callback(_kill, _start(folder, scratch, stdout))
        yield reports


def _takes(target: Path) -> bool:
    """Return whether this process is the first to take a batch."""
    try:
        target.mkdir()
    except FileExistsError:
        return False
    return True


def _start(folder: Path, scratch: str, stdout: IO[bytes]) -> subprocess.Popen[bytes]:
    paths = [str(Path(__file__).parents[3]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **SETTINGS}
    return subprocess.Popen(  # noqa: S603 - this interpreter and a module of ours
        [sys.executable, "-c", _PROGRAM, str(folder), scratch],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
        stderr=subprocess.DEVNULL,
    )


def _kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


def _save(result: BatchResult, folder: Path) -> None:
    files, tables = result
    for name, table in tables.items():
        table.write_ipc(folder / f"{name}.arrow")
    (folder / "files.json").write_bytes(msgspec.json.encode(files))


def _load(folder: Path) -> BatchResult:
    """Return a batch's result and delete its files; the folder stays, for it marks the batch as taken."""
    files = msgspec.json.decode((folder / "files.json").read_bytes(), type=list[File])
    tables = {path.stem: pl.read_ipc(path.read_bytes()) for path in folder.glob("*.arrow")}
    for path in folder.iterdir():
        path.unlink()
    return files, tables


def main(folder: str, scratch: str) -> None:
    """Read batches until none is left; save each result in `scratch`, and print its number."""
    job, batches = pickle.loads(Path(scratch, _TASK).read_bytes())  # noqa: S301 - of our parent, for us alone
    for number, batch in enumerate(batches):
        target = Path(scratch, str(number))
        if _takes(target):
            _save(job.run(Path(folder), batch), target)
            os.write(sys.stdout.fileno(), b"%b%d\n" % (_DONE, number))
    os._exit(0)  # at once: a normal exit would spend time freeing memory
