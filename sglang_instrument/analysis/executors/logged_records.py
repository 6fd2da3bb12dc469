"""Read the records of log files: from their lines, or from the parts that hold what the lines told."""

from collections.abc import Sequence
from pathlib import Path

import msgspec
import polars as pl

from sglang_instrument.analysis.executors.batches import in_order, join_results
from sglang_instrument.analysis.reading.files import File
from sglang_instrument.analysis.reading.reader import Reading, Source, read_files
from sglang_instrument.analysis.store.part_records import by_part, read_part_records
from sglang_instrument.analysis.store.parts import DAMAGED
from sglang_instrument.analysis.store.ranges import joined_file, pieces_of
from sglang_instrument.errors import LogError


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
    in_log = [file for file in files if file.part is None and file.range is None]
    parts = by_part(files).items()
    readings = [read_part_records(home / part, some, for_digest, with_extra) for part, some in parts]
    readings += [
        _read_in_pieces(folder, file, for_digest, with_extra) for file in files if file.range is not None
    ]
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
        # A table without records may lack columns of the text.
        results.append((some.files, {"records": records} if len(records) else {}))
    read, tables = in_order(files, join_results(results))
    pairs = [(number, run_id) for number, file in enumerate(read) for run_id in file.runs]
    sources = [Source(place, number, run_id) for number, run_id in pairs if (place := read[number].place)]
    return Reading(read, sources, list(tables.values()))


def _read_in_pieces(folder: Path, file: File, for_digest: bool, with_extra: bool) -> Reading:
    """Read a file of whose ranges parts hold the records; as a whole, if one of them cannot be read."""
    try:
        readings = [
            read_files(folder, [piece], for_digest, with_extra)
            if piece.part is None
            else read_part_records(Path(piece.part), [piece], for_digest, with_extra)
            for piece in pieces_of(file)
        ]
    except (LogError, *DAMAGED):
        whole = msgspec.structs.replace(file, range=None)
        return read_files(folder, [whole], for_digest, with_extra)
    read = joined_file(file, [reading.files[0] for reading in readings])
    numbers = {run_id: number for number, run_id in enumerate(read.runs)}
    tables, position = [], 0
    for reading in readings:
        records = reading.records
        sources = pl.Series([numbers[source.run_id] for source in reading.sources], dtype=pl.Int64)
        records = records.with_columns(sources.gather(records["source"]).alias("source"))
        if "position" in records.columns:
            records = records.with_columns(pl.col("position") + position)
        position += len(records)
        tables += [records] if len(records) else []
    place = read.place
    assert place is not None  # noqa: S101 - else it has no ranges
    rows = [pl.concat(tables).sort("source", maintain_order=True)] if tables else []
    return Reading([read], [Source(place, 0, run_id) for run_id in read.runs], rows)
