"""Write a run as a dataset: the parts of its log files, and tables; the next time, what changed."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import msgspec
import polars as pl

from sglang_instrument.analysis.dataset.brought import bring_lines, bring_records
from sglang_instrument.analysis.dataset.tables import MADE, make_table
from sglang_instrument.analysis.digests.digest import Digest
from sglang_instrument.analysis.digests.file_sources import key_of, only_files
from sglang_instrument.analysis.digests.parquet import save_parquet, write_parquet
from sglang_instrument.analysis.executors.executor import BatchResult, Progress, Tables
from sglang_instrument.analysis.executors.local import LocalExecutor
from sglang_instrument.analysis.executors.logged_records import read_logged
from sglang_instrument.analysis.reading.files import File, RunFiles, only_run
from sglang_instrument.analysis.reading.reader import Reading
from sglang_instrument.analysis.run.digest_of_run import read_everything
from sglang_instrument.analysis.run.opening import Run
from sglang_instrument.analysis.run.other_logs import other_log
from sglang_instrument.analysis.store.after_answer import write_now
from sglang_instrument.analysis.store.descriptions import copy_descriptions
from sglang_instrument.analysis.store.earlier_datasets import is_earlier_dataset
from sglang_instrument.analysis.store.homes import LOCK, locked
from sglang_instrument.analysis.store.part_records import copy_records, is_nested, other_lines, save_lines
from sglang_instrument.analysis.store.parts import (
    DAMAGED,
    PARTS,
    VERSION,
    Index,
    Part,
    draft_of,
    fill_part,
    finish_part,
    index_of,
    is_dataset,
    new_part,
    records_of,
    write_index,
    written_files,
)
from sglang_instrument.analysis.store.records import RECORDS, write_records
from sglang_instrument.analysis.store.store import group_files, without_many_small
from sglang_instrument.errors import InstrumentError
from sglang_instrument.safe_files.folder import SafeFolder, is_draft
from sglang_instrument.safe_files.output import writing_output


class Written(msgspec.Struct):
    """What an export did: how many parts it wrote, how many there are, and their records."""

    written: int
    files: int
    rows: int


def export_dataset(run: Run, target: Path, progress: Progress | None = None) -> Written:
    """Write a run to a new folder, or bring the dataset in it up to date.

    Args:
        run: The run.
        target: A new or empty folder outside of the run's, or one with a dataset of this run.
        progress: Called with the number of log files read so far and the number of files to read.

    Raises:
        InstrumentError: The folder holds something else, or cannot be written.
    """
    with writing(target):
        _demand_ours(run, target)
        target.mkdir(parents=True, exist_ok=True)
        folder = SafeFolder(target.absolute())
        with locked(folder):
            written = _write_parts(run, folder, progress)
            for name in MADE:
                save_parquet(folder, f"{name}.parquet", make_table(run, name))
            (folder / "processes").delete_drafts(at_once=True)
            copy_descriptions(run.home, folder)
    return written


@contextmanager
def writing(target: Path) -> Iterator[None]:
    """Raise InstrumentError if the disk is full or the folder is not ours: polars has its own errors."""
    try:
        yield
    except (OSError, pl.exceptions.PolarsError) as error:
        raise InstrumentError(f"{target} cannot be written as a whole: {error}") from error


def write_table(path: Path, table: pl.DataFrame) -> None:
    """Write a Parquet file, or replace it once the new one is whole."""
    with writing_output(path) as file:
        write_parquet(table, file)


def _demand_ours(run: Run, target: Path) -> None:
    """Raise InstrumentError unless a folder is new, empty, or a dataset of this run, and not inside it."""
    if target.resolve().is_relative_to(run.folder.resolve()):
        raise InstrumentError(f"{target} is inside the run; give a folder beside {run.folder}")
    if not target.exists() or (target.is_dir() and all(_is_begun(path.name) for path in target.iterdir())):
        return
    if is_earlier_dataset(target):
        raise InstrumentError(
            f"{target} is a dataset of an earlier version; `sglang-instrument export {target} --parquet NEW`"
            " converts it, and nothing is overwritten"
        )
    if not is_dataset(target):
        raise InstrumentError(
            f"{target} exists and is neither an empty folder nor a dataset; nothing is overwritten"
        )
    known = _index_of(SafeFolder(target)).runs
    if known and set(known).isdisjoint(run.files.begins):
        raise InstrumentError(
            f"{target} is a dataset of another run ({', '.join(known)}); nothing is overwritten"
        )


def _is_begun(name: str) -> bool:
    """Return whether this is the name of what an export writes before its index."""
    return name in (LOCK, PARTS) or is_draft(name)


def _index_of(folder: SafeFolder) -> Index:
    try:
        return index_of(folder)
    except DAMAGED:
        return Index(VERSION, [])


def _write_parts(run: Run, target: SafeFolder, progress: Progress | None) -> Written:
    """Write the parts that a dataset lacks, then the index, and delete the others."""
    write_now()
    files, whole = read_everything(run.executor, cached=run.cached)
    if run.run_id is not None:
        of_run = only_run(files, run.run_id)
        files, whole = of_run, only_files(whole, files, of_run)
    runs, other = list(RunFiles.of(files).begins), other_log(run.executor)
    old = _index_of(target)
    (target / PARTS).make()
    write_index(target, Index(VERSION, old.parts, runs, other))  # so that a killed export can go on
    staying = _staying(target, old, files)
    held = {key for part in staying for key in part.files}
    missing = [file for file in files if file.place is not None and key_of(file) not in held]
    groups = {new_part(target)[0]: group for group in _groups(missing)}
    job = _PartJob(target / PARTS, {group[0].path: draft_of(name) for name, group in groups.items()})
    readable = [group for group in groups.values() if group[0].has_records]
    if isinstance(run.executor, LocalExecutor):
        run.executor.read_batches(readable, job, progress)
    else:
        for group in readable:
            if run.executor.is_far and group[0].part is None:
                bring_records(run.executor, group, job.folder_of(group), progress)
                bring_lines(run.executor, group, job.folder_of(group))
            else:
                run.executor.read(group, job, progress)
    new = [_finished(target, name, group, files, whole) for name, group in groups.items()]
    write_index(target, Index(VERSION, [*staying, *new], runs, other))
    rows = sum(part.records for part in (*staying, *new))
    return Written(len(new), len(staying) + len(new), rows)


def _staying(target: SafeFolder, old: Index, files: Sequence[File]) -> list[Part]:
    """Return the parts that stay: whose files are as they were, or whose records nobody else has.

    Those of other files that count no more are left out of an entry.
    """
    by_key = {key_of(file): file for file in files}
    staying, lone = [], []
    for part in old.parts:
        folder = target / PARTS / part.name
        try:
            version, written = written_files(folder.path)
        except DAMAGED:
            continue
        now = [by_key[key] for key in part.files if key in by_key]
        has_records = folder.has_file(f"{RECORDS}.parquet")
        if has_records and any(not file.has_records for file in now):
            lone.append(Part(part.name, [key_of(file) for file in now], records_of(now)))
        elif (
            version == VERSION
            and len(now) == len(written) == len(part.files)
            and has_records == any(file.has_records for file in now)
        ):
            staying.append(part)
    return [*lone, *without_many_small(staying)]


def _groups(files: Sequence[File]) -> Iterator[list[File]]:
    """Yield files that make up a part each: of those whose log is gone, those of one part."""
    yield from group_files([file for file in files if file.has_records and file.part is None])
    without_log: dict[str | None, list[File]] = {}
    for file in files:
        if file.part is not None or not file.has_records:
            without_log.setdefault(file.part, []).append(file)
    yield from without_log.values()


def _finished(
    target: SafeFolder, name: str, group: Sequence[File], files: Sequence[File], whole: Digest
) -> Part:
    """Add the digest of files to a part that has their records, and give it its name."""
    listed = [msgspec.structs.replace(file, part=None) for file in group]
    fill_part(target / PARTS / draft_of(name), listed, only_files(whole, files, group).tables())
    finish_part(target, name)
    return Part(name, list(map(key_of, group)), records_of(group))


@dataclass(frozen=True)
class _PartJob:
    """Write all that files hold into the folder for the first of them, below `target`."""

    target: SafeFolder
    folders: Mapping[str, str]
    with_extra: ClassVar = True

    def run(self, folder: Path, batch: Sequence[File]) -> BatchResult:
        target, part = self.folder_of(batch), batch[0].part
        if part is not None and is_nested(folder / part):
            copy_records(target, folder / part, batch)
            save_lines(target, other_lines(folder, batch))
            return list(batch), {}
        reading = read_logged(folder, folder, batch, with_extra=self.with_extra)
        self._write(target, reading, other_lines(folder, reading.files))
        return reading.files, {}

    def make(self, reading: Reading) -> Tables:
        self._write(self.folder_of(reading.files), reading, other_lines(Path(), []))
        return {}

    def _write(self, target: SafeFolder, reading: Reading, lines: pl.DataFrame) -> None:
        save_lines(target, lines)
        write_records(target, reading, whole=True)

    def folder_of(self, files: Collection[File]) -> SafeFolder:
        """Return the folder that gets what files hold."""
        return self.target / self.folders[next(iter(files)).path]
