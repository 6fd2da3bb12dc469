"""Make the digest of a run: from the run's store, and from the lines of files that the store lacks."""

import hashlib
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Final

import polars as pl

from sglang_instrument.analysis.digests.digest import Digest, concat_digests
from sglang_instrument.analysis.digests.file_sources import join_digests, key_of, only_files
from sglang_instrument.analysis.digests.implied_requests import only_certain
from sglang_instrument.analysis.executors.batches import weight
from sglang_instrument.analysis.executors.executor import Executor, Progress
from sglang_instrument.analysis.reading.files import File, RunFiles, newest_run_filter, only_run
from sglang_instrument.analysis.run.batch_job import BatchJob
from sglang_instrument.analysis.run.logged_runs import find_run_id
from sglang_instrument.analysis.run.pruned import with_pruned
from sglang_instrument.analysis.run.unended import with_unended
from sglang_instrument.analysis.store.after_answer import write_after_answer
from sglang_instrument.analysis.store.homes import is_worthwhile
from sglang_instrument.analysis.store.parts import VERSION
from sglang_instrument.analysis.store.ranges import with_ranges
from sglang_instrument.analysis.store.store import held_parts, load, save

_SOME_BYTES: Final = 2**30  # of text: their digest takes about 100 MB


def digest_files(
    executor: Executor, files: Sequence[File], progress: Progress | None = None
) -> tuple[list[File], Digest]:
    """Return the files as read, and their digest; `source` numbers each pair of file and run, in order."""
    read, tables = executor.read(files, BatchJob("digest"), progress)
    return read, Digest(**tables) if tables else concat_digests([])


def read_digest(
    executor: Executor, progress: Progress | None = None, cached: bool = True, run_id: str | None = None
) -> tuple[RunFiles, Digest]:
    """Return the log files of a run, and the digest of their newest runs.

    Args:
        executor: Reads the run.
        progress: Called with the number of files read so far and the number of files to read.
        cached: Whether to use and write a store.
        run_id: Return this run alone, as if no other had written to the folder; the begin of an id will do.

    Raises:
        LogError: There is no such run.
    """
    files, digest = read_everything(executor, progress, cached)
    if run_id is not None:
        of_run = only_run(files, find_run_id(executor.folder, files, run_id))
        files, digest = of_run, only_files(digest, files, of_run)
    known = RunFiles.of(files)
    return known, only_newest_runs(known, digest)


def read_files_alone(
    executor: Executor, progress: Progress | None = None, run_id: str | None = None
) -> tuple[RunFiles, Digest]:
    """Return what `read_digest` does, without the digest: for questions about records.

    The digest of files that the store lacks is made of some files at a time, and kept there.

    Raises:
        LogError: There is no such run.
    """
    listed = executor.list_files()
    if is_worthwhile(listed):
        by_path = {file.path: file for part in held_parts(executor.home, listed) for file in part.counting}
        for some in _some_at_a_time([file for file in listed if file.path not in by_path]):
            by_path |= {file.path: file for file in stored_digest(executor, some, progress, of_some=True)[0]}
        read = [by_path[file.path] for file in listed]
    else:
        read = digest_files(executor, listed, progress)[0]
    files, _ = with_pruned(executor.home, read, concat_digests([]), files_alone=True)
    if run_id is not None:
        files = only_run(files, find_run_id(executor.folder, files, run_id))
    return RunFiles(files), concat_digests([])


def _some_at_a_time(files: Sequence[File]) -> Iterator[list[File]]:
    """Yield whole folders with about a gigabyte of text, so that their digests take little memory."""
    some: list[File] = []
    for _, of_folder in groupby(files, key=lambda file: file.folder):
        some += of_folder
        if sum(map(weight, some)) >= _SOME_BYTES:
            yield some
            some = []
    if some:
        yield some


def read_everything(
    executor: Executor, progress: Progress | None = None, cached: bool = True
) -> tuple[Sequence[File], Digest]:
    """Return the log files, also those of which only parts are left, and the digest of all runs in them."""
    return with_pruned(executor.home, *_read_log(executor, progress, cached))


def _read_log(executor: Executor, progress: Progress | None, cached: bool) -> tuple[Sequence[File], Digest]:
    files = executor.list_files()
    if not cached or not is_worthwhile(files):
        return digest_files(executor, files, progress)
    return stored_digest(executor, files, progress)


def stored_digest(
    executor: Executor, files: Sequence[File], progress: Progress | None = None, of_some: bool = False
) -> tuple[RunFiles, Digest]:
    """Return files as read, and their digest: from the store, which gets what it lacks.

    Args:
        executor: Reads the run.
        files: Its log files, as listed.
        progress: As for `read_digest`.
        of_some: Whether these are some files of many, whose parts are written at once to free the memory.
    """
    known, old = load(executor.home, files)
    unchanged = {key_of(file): file for file in known}
    changed = with_ranges(executor.home, [file for file in files if key_of(file) not in unchanged])
    read, new = digest_files(executor, changed, progress) if changed or not known else ([], None)
    by_path = {file.path: file for file in read}
    merged = RunFiles(by_path.get(file.path) or unchanged[key_of(file)] for file in files)
    whole = old if new is None else join_digests([(known, old), (read, new)], merged)
    if of_some:
        save(executor.home, merged, whole, read, of_some)
    else:
        write_after_answer(lambda: save(executor.home, merged, whole, read))
    return merged, whole


def only_newest_runs(files: Sequence[File], digest: Digest) -> Digest:
    """Drop the rows that older runs wrote."""
    counts = newest_run_filter(files)
    left_out = [
        number
        for number, (file, run_id) in enumerate((file, run) for file in files for run in file.runs)
        if not counts(file, run_id)
    ]
    of_newest = digest.filter(~pl.col("source").is_in(left_out)) if left_out else digest
    requests = only_certain(of_newest.requests, files)
    certain = replace(of_newest, steps=_with_launches(files, of_newest.steps), requests=requests)
    return with_unended(files, certain)


def _with_launches(files: Sequence[File], steps: pl.DataFrame) -> pl.DataFrame:
    """Number the launches that wrote steps; files without a header do not tell."""
    runs = [run_id for file in files for run_id in file.runs]
    known = {run_id: number for number, run_id in enumerate(sorted({run for run in runs if run is not None}))}
    numbers = pl.Series([None if run is None else known[run] for run in runs], dtype=pl.Int64)
    return steps.with_columns(launch=numbers.gather(steps["source"]))


def state_of(files: Sequence[File]) -> str:
    """Return a name for the state of some files."""
    state = repr((VERSION, [(key_of(file), file.runs) for file in files]))
    return hashlib.sha256(state.encode()).hexdigest()[:12]
