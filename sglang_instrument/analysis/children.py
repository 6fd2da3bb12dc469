"""Share the reading of a run among processes.

A child is a plain `python -c`, not `multiprocessing`: that would import the user's script again. Nor is it
forked, for polars has threads as soon as it is imported.
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Final

import msgspec
import polars as pl

from sglang_instrument.analysis.files import File
from sglang_instrument.analysis.work import Part, Work

#: One thread of polars a process, for there is a process a core. Memory is kept, not given back after each
#: batch: to get it anew, page by page, takes a fifth of the time.
_SETTINGS: Final = {
    "PYTHONSAFEPATH": "1",  # whatever lies in the current folder
    "SGLANG_INSTRUMENT": "0",  # what reads a log does not write one
    "POLARS_MAX_THREADS": "1",
    "MALLOC_TOP_PAD_": str(64 * 1024 * 1024),
    "MALLOC_MMAP_THRESHOLD_": str(1024**3),
    "MALLOC_TRIM_THRESHOLD_": str(4 * 1024**3),
    "_RJEM_MALLOC_CONF": "dirty_decay_ms:-1,muzzy_decay_ms:-1",
}
# Without a search for garbage from the first import on: that is a tenth of what a child costs to start.
_PROGRAM: Final = """
import gc, sys
gc.disable()
from sglang_instrument.analysis.children import main
main(*sys.argv[1:])
"""
_DONE: Final = b"done with batch "


class _Task(msgspec.Struct):
    """What all children do together: each takes the next batch that none of them has taken."""

    work: Work
    batches: list[list[File]]


def read_in_children(
    folder: Path, batches: Sequence[list[File]], work: Work, processes: int
) -> Iterator[tuple[int, Part]]:
    """Yield the number of each batch and what came of it, in the order in which they are done.

    This process only waits. It would be slower than they are: its polars keeps several threads, which wait
    for each other. What a child could not do is done here, at the end.
    """
    left = set(range(len(batches)))
    with tempfile.TemporaryDirectory() as scratch:
        Path(scratch, "task.json").write_bytes(msgspec.json.encode(_Task(work, list(batches))))
        for number in _ended(folder, scratch, processes):
            if number in left:
                left.discard(number)
                yield number, _load(Path(scratch, str(number)))
    for number in sorted(left):
        yield number, work.of(folder, batches[number])


def _ended(folder: Path, scratch: str, processes: int) -> Iterator[int]:
    """Run the children; yield the numbers of batches as these are done."""
    ours, theirs = os.pipe()
    with ExitStack() as stack, os.fdopen(ours, "rb") as told:
        with os.fdopen(
            theirs, "wb"
        ) as to_tell:  # closed here, so that the pipe ends when the last child does
            for _ in range(processes):
                stack.callback(_end, _start(folder, scratch, to_tell))
        yield from (int(line.removeprefix(_DONE)) for line in told if line.startswith(_DONE))


def _start(folder: Path, scratch: str, told: IO[bytes]) -> subprocess.Popen[bytes]:
    paths = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), **_SETTINGS}
    return subprocess.Popen(  # noqa: S603 - this interpreter and a module of ours
        [sys.executable, "-c", _PROGRAM, str(folder), scratch],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=told,
        stderr=subprocess.DEVNULL,
    )


def _end(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait()


def _save(part: Part, place: Path) -> None:
    files, tables = part
    for name, table in tables.items():
        table.write_ipc(place / f"{name}.arrow")
    (place / "files.json").write_bytes(msgspec.json.encode(files))


def _load(place: Path) -> Part:
    """Return what a child left, and delete it, while others still read; the folder says that it is taken."""
    files = msgspec.json.decode((place / "files.json").read_bytes(), type=list[File])
    tables = {path.stem: pl.read_ipc(path.read_bytes()) for path in place.glob("*.arrow")}
    for path in place.iterdir():
        path.unlink()
    return files, tables


def main(folder: str, scratch: str) -> None:
    """Take batches as long as there are any; leave what came of them in `scratch`, and tell their numbers."""
    task = msgspec.json.decode(Path(scratch, "task.json").read_bytes(), type=_Task)
    for number, batch in enumerate(task.batches):
        place = Path(scratch, str(number))
        try:
            place.mkdir()
        except FileExistsError:
            continue
        _save(task.work.of(Path(folder), batch), place)
        os.write(sys.stdout.fileno(), b"%b%d\n" % (_DONE, number))
    os._exit(0)  # at once: to give back the memory piece by piece takes its time
