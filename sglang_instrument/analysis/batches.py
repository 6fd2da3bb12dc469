"""Read the files of a run batch by batch, in as many processes as the machine has cores, into tables."""

import math
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

import polars as pl

from sglang_instrument.analysis.children import read_in_children
from sglang_instrument.analysis.digest import Digest, concat_digests
from sglang_instrument.analysis.files import File
from sglang_instrument.analysis.work import Part, Tables, Work

_BATCH_BYTES: Final = 24 * 1024 * 1024  # of text; some 100,000 records
_CHILD_BYTES: Final = 48 * 1024 * 1024  # what is worth a process of its own
_MOST_PROCESSES: Final = 16
_PACKED: Final = 10  # by about so much .zst files are smaller

Progress = Callable[[int, int], object]


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
    worthwhile = 1 + sum(map(_weight, files)) // _CHILD_BYTES
    processes = max(1, min(_cores(), _MOST_PROCESSES, len(files), worthwhile))
    batches = _batches(files, processes)
    if processes > 1:
        coming = read_in_children(folder, batches, work, processes)
    else:
        coming = ((number, work.of(folder, batch)) for number, batch in enumerate(batches))
    tell = progress or (lambda done, total: None)
    tell(0, len(files))
    parts: dict[int, Part] = {}
    for number, part in coming:
        parts[number] = part
        tell(sum(len(batches[done]) for done in parts), len(files))
    return _joined([parts[number] for number in range(len(batches))])


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


def _weight(file: File) -> int:
    return max(1, file.size * (_PACKED if file.path.endswith(".zst") else 1))


def _batches(files: Sequence[File], processes: int) -> list[list[File]]:
    """Cut files into batches of about the same weight, as many for each process."""
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
