"""Read the files of a run in batches, in up to one process per core, into tables."""

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import polars as pl

from sglang_instrument.analysis.digests.digest import Digest, concat_digests
from sglang_instrument.analysis.reading.files import File
from sglang_instrument.analysis.run.batch_job import BatchJob, BatchResult, Tables
from sglang_instrument.analysis.run.worker_processes import read_in_processes

_BATCH_BYTES: Final = 36 * 1024 * 1024  # of text; some 150,000 records
_BYTES_PER_PROCESS: Final = 48 * 1024 * 1024  # less text is not worth starting another process
_MOST_PROCESSES: Final = 16
_ZSTD_RATIO: Final = 10  # about how many times smaller .zst files are

Progress = Callable[[int, int], object]


def digest_files(
    folder: Path,
    files: Sequence[File],
    progress: Progress | None = None,
    most_processes: int = _MOST_PROCESSES,
) -> tuple[list[File], Digest]:
    """Return the files as read, and their digest; `source` numbers each pair of file and run, in order."""
    read, parts = read_tables(folder, files, BatchJob("digest"), progress, most_processes)
    return read, concat_digests([Digest(**tables) for tables in parts])


def read_tables(
    folder: Path,
    files: Sequence[File],
    job: BatchJob,
    progress: Progress | None = None,
    most_processes: int = _MOST_PROCESSES,
) -> tuple[list[File], list[Tables]]:
    """Return the files as read, and the tables of each batch; `source` numbers each file and run, in order.

    Args:
        folder: The run's folder.
        files: Files in it.
        job: Which tables to make.
        progress: Called with the number of files read so far and the number of all files.
        most_processes: Read in no more processes than this.
    """
    worthwhile = 1 + sum(map(_weight, files)) // _BYTES_PER_PROCESS
    processes = max(1, min(_cores(), most_processes, len(files), worthwhile))
    batches = _batches(files, processes)
    if processes > 1:
        coming = read_in_processes(folder, batches, job, processes)
    else:
        coming = ((number, job.run(folder, batch)) for number, batch in enumerate(batches))
    tell = progress or (lambda done, total: None)
    tell(0, len(files))
    parts: dict[int, BatchResult] = {}
    for number, part in coming:
        parts[number] = part
        tell(sum(len(batches[done]) for done in parts), len(files))
    return _joined([parts[number] for number in range(len(batches))])


def _joined(parts: list[BatchResult]) -> tuple[list[File], list[Tables]]:
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


def _weight(file: File) -> int:
    return max(1, file.size * (_ZSTD_RATIO if file.path.endswith(".zst") else 1))


def _batches(files: Sequence[File], processes: int) -> list[list[File]]:
    """Split files into batches of about equal weight, with equally many batches for each process."""
    weight = sum(map(_weight, files))
    rounds = max(1, math.ceil(weight / (_BATCH_BYTES * processes)))
    share = weight / (rounds * processes)
    batches: list[list[File]] = []
    taken = 0
    for file in files:
        if taken >= share * len(batches):
            batches.append([])
        batches[-1].append(file)
        taken += _weight(file)
    return batches


def _cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
