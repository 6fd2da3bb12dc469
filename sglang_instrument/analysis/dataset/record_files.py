"""Find the records of a run as Parquet; the store keeps those of its parts for the next time."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Final

import polars as pl

from sglang_instrument.analysis.dataset.brought import bring_records
from sglang_instrument.analysis.digests.file_sources import Key, key_of
from sglang_instrument.analysis.digests.parquet import demand_bounded_table
from sglang_instrument.analysis.executors.executor import Executor, Progress
from sglang_instrument.analysis.executors.local import LocalExecutor
from sglang_instrument.analysis.reading.files import File, newest_run_filter
from sglang_instrument.analysis.run.batch_job import BatchJob
from sglang_instrument.analysis.run.opening import Run
from sglang_instrument.analysis.store.after_answer import write_now
from sglang_instrument.analysis.store.homes import is_worthwhile, locked
from sglang_instrument.analysis.store.part_records import by_part, is_nested
from sglang_instrument.analysis.store.parts import PARTS, read_index, written_files
from sglang_instrument.analysis.store.records import RECORDS
from sglang_instrument.analysis.store.store import HeldPart, group_files, held_parts
from sglang_instrument.errors import LogError
from sglang_instrument.regular_files import demand_regular
from sglang_instrument.safe_files.folder import SafeFolder

_NAME: Final = f"{RECORDS}.parquet"


@dataclass(frozen=True)
class RecordFile:
    """A Parquet file of records; `only` are the log files and runs whose records count, None for all."""

    path: Path
    only: list[tuple[str, str | None]] | None = None


def record_files(run: Run, scratch: SafeFolder, progress: Progress | None = None) -> list[RecordFile]:
    """Return files that hold the records of a run together; where the store lacks them, they are made.

    Args:
        run: The run.
        scratch: A folder for those that the store does not keep.
        progress: Called with the number of log files read so far and the number of files to read.

    Raises:
        LogError: Records cannot be read.
        OSError, polars.exceptions.PolarsError: They cannot be written.
    """
    nested = {part: files for part, files in by_part(run.files).items() if is_nested(run.home / part)}
    files = [file for file in run.files if file.has_records and file.part not in nested]
    in_store = _in_store(run, files, progress)
    held = {key_of(file) for part in in_store for file in part.counting}
    missing = [file for file in files if key_of(file) not in held]
    written = _write(run, missing, scratch, progress) if missing else []
    counts = newest_run_filter(run.files)
    wanted = {(key_of(file), run_id) for file in run.files for run_id in file.runs if counts(file, run_id)}
    stored = [(part.folder / _NAME, part.files) for part in in_store]
    stored += [(path, written) for path in sorted(scratch.path.glob(f"*/{_NAME}"))]
    stored += [(run.home / part / _NAME, written_files(run.home / part)[1]) for part in nested]
    for path, _ in stored:
        _demand_readable(path)
    return [RecordFile(path, _chosen(of_part, wanted)) for path, of_part in stored]


def _demand_readable(path: Path) -> None:
    """Raise unless DuckDB may read a file of records.

    Raises:
        LogError: It is damaged, or would take more memory than its bytes account for.
    """
    try:
        demand_bounded_table(path)
    except (OSError, ValueError, pl.exceptions.PolarsError) as error:
        raise LogError(f"{path}: its records cannot be read: {error}") from None


def _write(run: Run, files: Sequence[File], scratch: SafeFolder, progress: Progress | None) -> list[File]:
    """Write the records of files into folders of a temporary one; return the files as they were read."""
    if not run.executor.is_far:
        return run.executor.read(files, BatchJob(RECORDS, target=scratch), progress)[0]
    groups = group_files(files)
    return [
        file
        for number, group in enumerate(groups)
        for file in bring_records(run.executor, group, scratch / str(number), progress)
    ]


def _chosen(
    files: Sequence[File], wanted: set[tuple[Key, str | None]]
) -> list[tuple[str, str | None]] | None:
    """Return those pairs of file and run whose records count; None if all do."""
    pairs = [(file, run_id) for file in files for run_id in file.runs]
    chosen = [(file.path, run_id) for file, run_id in pairs if (key_of(file), run_id) in wanted]
    return None if len(chosen) == len(pairs) else chosen


def _in_store(run: Run, files: Sequence[File], progress: Progress | None) -> list[HeldPart]:
    """Return the parts of the store with records of these files; those that lack records get them."""
    if not run.cached or not is_worthwhile(files):
        return []
    write_now()
    held = []
    for home, of_home in groupby(held_parts(run.home, files), key=lambda part: part.home):
        parts = list(of_home)
        lacking = [part for part in parts if not _has_records(part)]
        if lacking:
            try:
                _add_records(home, lacking, run.executor, progress)
            except (OSError, pl.exceptions.PolarsError):  # in use, read only, full, or a link is in the way
                pass
        held += [part for part in parts if _has_records(part)]
    return held


def _has_records(part: HeldPart) -> bool:
    try:
        demand_regular(part.folder / _NAME)
    except OSError:
        return False
    return True


def _add_records(
    home: SafeFolder, parts: Sequence[HeldPart], executor: Executor, progress: Progress | None
) -> None:
    with locked(home):
        indexed = {part.name for part in read_index(home).parts}
        parts = [part for part in parts if part.name in indexed]
        if not isinstance(executor, LocalExecutor):
            for part in parts:
                bring_records(executor, part.counting, home / PARTS / part.name, progress)
            return
        folders = {part.counting[0].path: part.name for part in parts}
        job = BatchJob(RECORDS, target=home / PARTS, folders=folders)
        executor.read_batches([part.counting for part in parts], job, progress)
