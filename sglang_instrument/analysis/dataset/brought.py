"""Bring what a part holds of log files on the nodes of a cluster: its tables are made where the files lie."""

from collections.abc import Sequence

import polars as pl

from sglang_instrument.analysis.executors.executor import Executor, Progress
from sglang_instrument.analysis.reading.files import File
from sglang_instrument.analysis.run.batch_job import BatchJob
from sglang_instrument.analysis.store.part_records import OTHER_LINES, save_lines
from sglang_instrument.analysis.store.records import RECORDS, save_records
from sglang_instrument.safe_files.folder import SafeFolder


def bring_records(
    executor: Executor, files: Sequence[File], target: SafeFolder, progress: Progress | None = None
) -> list[File]:
    """Write the records of log files into the folder of a part; return the files as they were read.

    Raises:
        OSError, polars.exceptions.PolarsError: They cannot be written.
    """
    read, tables = executor.read(files, BatchJob(RECORDS), progress)
    if RECORDS in tables:
        names = [file.path for file in read for _ in file.runs]  # on a node, a file may have another name
        save_records(target, _named(tables[RECORDS], names), whole=True)
    return read


def bring_lines(executor: Executor, files: Sequence[File], target: SafeFolder) -> None:
    """Write the lines of log files that are no records into the folder of a part.

    Args:
        executor: What reads the files.
        files: The files, as they were read.
        target: The folder.

    Raises:
        OSError, polars.exceptions.PolarsError: They cannot be written.
    """
    read, tables = executor.read(files, BatchJob("other_lines"))
    table = tables.get("other_lines", pl.DataFrame(schema={"source": pl.Int64, **OTHER_LINES}))
    save_lines(
        target, _named(table, [file.path for file in read for _ in file.runs]).select(list(OTHER_LINES))
    )


def _named(rows: pl.DataFrame, names: Sequence[str]) -> pl.DataFrame:
    """Return rows with the path of the file of each, by its source."""
    paths = pl.Series("file", names, dtype=pl.String).gather(rows["source"])
    return rows.with_columns(paths).drop("source")
