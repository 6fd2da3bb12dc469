"""Read the records of log files: from their lines, or from the parts that hold what the lines told."""

from collections.abc import Sequence
from pathlib import Path

import polars as pl

from sglang_instrument.analysis.executors.batches import in_order, join_results
from sglang_instrument.analysis.reading.files import File
from sglang_instrument.analysis.reading.reader import Reading, Source, read_files
from sglang_instrument.analysis.store.part_records import by_part, read_part_records


def read_logged(
    folder: Path, home: Path, files: Sequence[File], for_digest: bool = False, with_extra: bool = False
) -> Reading:
    """Read files as `read_files` does, also those of which parts hold the records.

    Args:
        folder: The folder with the log files.
        home: The folder that the paths of parts begin in.
        files: The files.
        for_digest: As for `read_files`.
        with_extra: As for `read_files`.

    Raises:
        LogError: A part cannot be read.
    """
    in_log = [file for file in files if file.part is None]
    parts = by_part(files).items()
    readings = [read_part_records(home / part, some, for_digest, with_extra) for part, some in parts]
    if in_log or not readings:
        readings.append(read_files(folder, in_log, for_digest, with_extra))
    if len(readings) == 1:
        return readings[0]
    results = []
    position = 0
    for some in readings:
        records = some.records
        if "position" in records.columns:  # not where it is read for a digest
            records = records.with_columns(pl.col("position") + position)
        position += len(records)
        results.append((some.files, {"records": records}))
    read, tables = in_order(files, join_results(results))
    pairs = [(number, run_id) for number, file in enumerate(read) for run_id in file.runs]
    sources = [Source(place, number, run_id) for number, run_id in pairs if (place := read[number].place)]
    return Reading(read, sources, [tables["records"]])
