"""Number the pairs of file and run that rows of tables come from, and number them anew for other files."""

from collections.abc import Mapping, Sequence

import polars as pl

from sglang_instrument.analysis.digests.digest import SCHEMAS, Digest, concat_table
from sglang_instrument.analysis.reading.files import File

#: What tells whether a file is as it was: its path, inode, size and modification time.
Key = tuple[str, int, int, int]


def key_of(file: File) -> Key:
    """Return the key of a file."""
    return (file.path, file.inode, file.size, file.mtime_ns)


def number_sources(files: Sequence[File]) -> dict[tuple[str, int, int, int, str | None], int]:
    """Return the number of each pair of file and run, in order."""
    runs = [(*key_of(file), run_id) for file in files for run_id in file.runs]
    return {run: number for number, run in enumerate(runs)}


def renumber(table: pl.DataFrame, files: Sequence[File], kept_files: Sequence[File]) -> pl.DataFrame:
    """Return the rows of files, and of runs in them, that are kept, with the new numbers in `source`."""
    return _with_numbers(table, _new_numbers(files, number_sources(kept_files)))


def _new_numbers(
    files: Sequence[File], new: Mapping[tuple[str, int, int, int, str | None], int]
) -> pl.Series | None:
    """Return the new number of each source, null for those that go; None if all stay as they are."""
    numbers = [new.get(run) for run in number_sources(files)]
    return None if numbers == list(range(len(numbers))) else pl.Series(numbers, dtype=pl.Int64)


def _with_numbers(table: pl.DataFrame, numbers: pl.Series | None) -> pl.DataFrame:
    if numbers is None:
        return table
    renumbered = numbers.gather(table["source"]).alias("source")
    if renumbered.null_count():
        table, renumbered = table.filter(renumbered.is_not_null()), renumbered.drop_nulls()
    return table.with_columns(renumbered)


def join_digests(parts: list[tuple[Sequence[File], Digest]], files: Sequence[File]) -> Digest:
    """Return one digest of these files, in their order, from digests of some of them each.

    The order matters: where answers are equal, as of two requests of one length, the first row counts. Takes
    the parts out of their list, so that memory holds one table of a long run twice, not all.
    """
    new = number_sources(files)
    tables = []
    while parts:
        read, digest = parts.pop(0)
        numbers = _new_numbers(read, new)
        tables.append({name: _with_numbers(table, numbers) for name, table in digest.tables().items()})
        del digest
    return Digest(
        **{name: _in_order(concat_table(name, [of_part.pop(name) for of_part in tables])) for name in SCHEMAS}
    )


def _in_order(table: pl.DataFrame) -> pl.DataFrame:
    return table if table["source"].is_sorted() else table.sort("source", maintain_order=True)


def only_files(digest: Digest, files: Sequence[File], kept_files: Sequence[File]) -> Digest:
    """Return a digest with the rows of files, and of runs in them, that are kept; see `renumber`."""
    if list(files) == list(kept_files):
        return digest
    numbers = _new_numbers(files, number_sources(kept_files))
    return Digest(**{name: _with_numbers(table, numbers) for name, table in digest.tables().items()})
