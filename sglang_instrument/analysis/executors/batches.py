"""Split files into batches of about equal weight, and put the results of batches together."""

import math
from collections.abc import Sequence
from itertools import accumulate
from typing import Final

import polars as pl

from sglang_instrument.analysis.executors.executor import BatchResult
from sglang_instrument.analysis.reading.files import File

_BATCH_BYTES: Final = 18 * 1024 * 1024  # of text; some 75,000 records: larger ones are no faster
_BYTES_PER_PROCESS: Final = 48 * 1024 * 1024  # less text is not worth starting another process
_FASTER: Final = 5  # times as fast as lines are the records of a part
#: About how many times smaller .zst files are.
ZSTD_RATIO: Final = 10


def weight(file: File) -> int:
    """Return about how many bytes of text a file has."""
    return max(1, file.size * (ZSTD_RATIO if file.path.endswith(".zst") else 1))


def worthwhile_processes(files: Sequence[File], most: int) -> int:
    """Return how many processes files are worth, `most` at most."""
    work = sum(map(_work, files))
    return max(1, min(most, len(files), 1 + work // _BYTES_PER_PROCESS))


def _work(file: File) -> int:
    """Return how many bytes of text take as long as a file."""
    in_parts = 0 if file.range is None else file.range.begin
    return (weight(file) - in_parts) // (1 if file.part is None else _FASTER) + in_parts // _FASTER


def split_files(files: Sequence[File], processes: int) -> list[list[File]]:
    """Split files into batches of about equal weight, with equally many batches for each process."""
    total = sum(map(weight, files))
    rounds = max(1, math.ceil(total / (_BATCH_BYTES * processes)))
    share = total / (rounds * processes)
    batches: list[list[File]] = []
    taken = 0
    for file in files:
        if taken >= share * len(batches):
            batches.append([])
        batches[-1].append(file)
        taken += weight(file)
    return batches


def join_results(parts: Sequence[BatchResult]) -> BatchResult:
    """Return the results of batches as that of one batch with the files of all, in this order.

    Takes the tables out of the parts, so that memory holds hardly any of them twice.
    """
    files = [file for read, _ in parts for file in read]
    counts = [sum(len(file.runs) for file in read) for read, _ in parts]
    begins = [0, *accumulate(counts)]
    names = dict.fromkeys(name for _, tables in parts for name in tables)
    return files, {
        name: pl.concat(
            [
                tables.pop(name).with_columns(pl.col("source") + begin)
                for begin, (_, tables) in zip(begins, parts, strict=False)
                if name in tables
            ],
            rechunk=True,
        )
        for name in names
    }


def in_order(wanted: Sequence[File], result: BatchResult) -> BatchResult:
    """Return a result with its files in the order of `wanted`, and the rows of tables sorted by source."""
    read, tables = result
    rank = {file.path: number for number, file in enumerate(wanted)}
    order = sorted(range(len(read)), key=lambda number: rank[read[number].path])
    begins, begin = [], 0
    for file in read:
        begins.append(begin)
        begin += len(file.runs)
    new = [0] * begin
    next_number = 0
    for number in order:
        for run in range(len(read[number].runs)):
            new[begins[number] + run] = next_number
            next_number += 1
    numbers = pl.Series(new, dtype=pl.Int64)
    return [read[number] for number in order], {
        name: _sorted(tables.pop(name), numbers) for name in list(tables)
    }


def _sorted(table: pl.DataFrame, numbers: pl.Series) -> pl.DataFrame:
    """Return a table with new numbers in `source`, sorted by them."""
    table = table.with_columns(numbers.gather(table["source"]).alias("source"))
    return table if table["source"].is_sorted() else table.sort("source", maintain_order=True)
