"""Read the files of a run and make tables of them, in as many processes as the machine has cores.

A child is a plain `python -m`, not `multiprocessing`: that would import the user's script again.
"""

import gc
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import msgspec
import polars as pl

from sglang_instrument.analysis.digest import Digest, concat_digests, digest_records
from sglang_instrument.analysis.files import File
from sglang_instrument.analysis.narrow import event_times, narrow_events
from sglang_instrument.analysis.reader import read_files

_BATCH_BYTES: Final = 24 * 1024 * 1024  # of text; some 100,000 records
_CHILD_BYTES: Final = 48 * 1024 * 1024  # what is worth a process of its own
_MOST_PROCESSES: Final = 16
_POLL_SEC: Final = 0.1
_PACKED: Final = 10  # by about so much .zst files are smaller

#: One thread of polars a process, for there is a process a core. Memory is kept, not given back after each
#: batch: to get it anew, page by page, takes a fifth of the time.
_FOR_CHILDREN: Final = {
    "POLARS_MAX_THREADS": "1",
    "MALLOC_TOP_PAD_": str(64 * 1024 * 1024),
    "MALLOC_MMAP_THRESHOLD_": str(1024**3),
    "MALLOC_TRIM_THRESHOLD_": str(4 * 1024**3),
    "_RJEM_MALLOC_CONF": "dirty_decay_ms:-1,muzzy_decay_ms:-1",
}

Progress = Callable[[int, int], object]
Tables = dict[str, pl.DataFrame]
Part = tuple[list[File], Tables]


class Work(msgspec.Struct, frozen=True):
    """Which tables are wanted: "digest", "events", or "times" of the events that are named."""

    tables: str
    names: tuple[str, ...] = ()

    def of(self, folder: Path, batch: Sequence[File]) -> Part:
        """Return the files as they were read, and their tables."""
        with _uncollected():
            reading = read_files(folder, batch, thin=self.tables == "digest")
            if self.tables == "digest":
                return reading.files, digest_records(reading.records).tables()
            if self.tables == "times":
                return reading.files, {"times": event_times(reading.records, self.names)}
            return reading.files, {"events": narrow_events(reading.records)}


def digest_files(
    folder: Path, files: Sequence[File], progress: Progress | None = None
) -> tuple[list[File], Digest]:
    """Return the files as they were read and their digest; `source` numbers their runs in order."""
    read, parts = read_tables(folder, files, Work("digest"), progress)
    return read, concat_digests([Digest(**tables) for tables in parts])


def read_tables(
    folder: Path, files: Sequence[File], work: Work, progress: Progress | None = None
) -> tuple[list[File], list[Tables]]:
    """Return the files as they were read and their tables by batches; `source` numbers their runs in order.

    Args:
        folder: The run's folder.
        files: Files in it.
        work: Which tables are wanted.
        progress: Called with the number of files read and that of all files.
    """
    batches = _batches(files)
    worthwhile = 1 + sum(map(_weight, files)) // _CHILD_BYTES
    processes = min(_cores(), _MOST_PROCESSES, len(batches), worthwhile)
    if processes > 1:
        return _joined(_read_in_children(folder, batches, work, processes, progress))
    parts = []
    for number, batch in enumerate(batches):
        if progress is not None:
            progress(sum(map(len, batches[:number])), len(files))
        parts.append(work.of(folder, batch))
    return _joined(parts)


def _read_in_children(
    folder: Path, batches: list[list[File]], work: Work, processes: int, progress: Progress | None
) -> list[Part]:
    """Give each child every so many-th batch; this process only waits.

    It would be slower than they are: its polars keeps several threads, which wait for each other.
    """
    with tempfile.TemporaryDirectory() as scratch:
        children = [
            _Child(folder, _Share(work, batches[number::processes]), Path(scratch, str(number)))
            for number in range(processes)
        ]
        total = sum(map(len, batches))
        while not all(child.wait(_POLL_SEC) for child in children):
            if progress is not None:
                progress(sum(child.done() for child in children), total)
        parts = [child.result() for child in children]
    return [parts[number % processes][number // processes] for number in range(len(batches))]


def _joined(parts: list[Part]) -> tuple[list[File], list[Tables]]:
    files: list[File] = []
    shifted = []
    sources = 0
    for read, tables in parts:
        files += read
        shifted.append(
            {name: table.with_columns(pl.col("source") + sources) for name, table in tables.items()}
        )
        sources += sum(len(file.runs) for file in read)
    return files, shifted


@contextmanager
def _uncollected() -> Iterator[None]:
    """Pause the collection of cycles: lines have none, and looking for them costs a sixth of the time."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collecting:
            gc.enable()


def _weight(file: File) -> int:
    return file.size * (_PACKED if file.path.endswith(".zst") else 1)


def _batches(files: Sequence[File]) -> list[list[File]]:
    batches: list[list[File]] = []
    room = 0
    for file in files:
        if room <= 0:
            batches.append([])
            room = _BATCH_BYTES
        batches[-1].append(file)
        room -= max(1, _weight(file))
    return batches


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Share(msgspec.Struct):
    """What one child does."""

    work: Work
    batches: list[list[File]]


class _Child:
    """A process that does a share of the work; if it cannot, that is done here."""

    def __init__(self, folder: Path, share: _Share, scratch: Path) -> None:
        self._folder, self._share, self._scratch = folder, share, scratch
        scratch.mkdir()
        (scratch / "share.json").write_bytes(msgspec.json.encode(share))
        command = [sys.executable, "-m", "sglang_instrument.analysis.batches", str(folder), str(scratch)]
        paths = [str(Path(__file__).parents[2]), *filter(None, [os.environ.get("PYTHONPATH")])]
        # SGLANG_INSTRUMENT=0: what reads a log does not write one.
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "SGLANG_INSTRUMENT": "0"}
        environment.update(_FOR_CHILDREN)
        self._process = subprocess.Popen(  # noqa: S603 - this interpreter and a module of ours
            command,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )

    def wait(self, seconds: float) -> bool:
        """Wait for its end; return whether it came."""
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            return False
        return True

    def done(self) -> int:
        """Return how many files it has read."""
        read = [
            Path(self._scratch, str(number), "files.json").exists()
            for number in range(len(self._share.batches))
        ]
        return sum(len(batch) for batch, is_read in zip(self._share.batches, read, strict=True) if is_read)

    def result(self) -> list[Part]:
        """Return what it found."""
        if self._process.returncode != 0:
            return [self._share.work.of(self._folder, batch) for batch in self._share.batches]
        return [_load(self._scratch / str(number)) for number in range(len(self._share.batches))]


def _save(part: Part, place: Path) -> None:
    """Leave tables, and last the files: then they are all there."""
    place.mkdir()
    files, tables = part
    for name, table in tables.items():
        table.write_parquet(place / f"{name}.parquet", compression="uncompressed")
    (place / "files.json").write_bytes(msgspec.json.encode(files))


def _load(place: Path) -> Part:
    files = msgspec.json.decode((place / "files.json").read_bytes(), type=list[File])
    return files, {path.stem: pl.read_parquet(path) for path in place.glob("*.parquet")}


def main(folder: Path, scratch: Path) -> None:
    """Do a share of the work, and leave what came out in `scratch`."""
    share = msgspec.json.decode((scratch / "share.json").read_bytes(), type=_Share)
    for number, batch in enumerate(share.batches):
        _save(share.work.of(folder, batch), scratch / str(number))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
