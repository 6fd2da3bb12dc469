"""Cache the digest of a run, and read again only the files that changed.

The log always wins over the cache. A file counts as unchanged if its path, size and modification time are the
cached ones, and the cache has today's log version and layout. An unreadable cache is made again; where no
cache can be written, there is none.
"""

import hashlib
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec
import polars as pl

from sglang_instrument.analysis.digests.digest import Digest, concat_digests
from sglang_instrument.analysis.digests.file_sources import join_digests, key_of, only_files
from sglang_instrument.analysis.digests.stored_digest import (
    VERSION,
    load_digest,
    save_digest,
    save_table,
)
from sglang_instrument.analysis.executors.executor import Executor, Progress
from sglang_instrument.analysis.reading.files import File, RunFiles, newest_run_filter, only_run
from sglang_instrument.analysis.run.batch_job import BatchJob
from sglang_instrument.analysis.run.logged_runs import find_run_id
from sglang_instrument.analysis.run.pruned import with_pruned
from sglang_instrument.errors import LogError
from sglang_instrument.safe_files.folder import SafeFolder

_WORTHWHILE_BYTES: Final = 4 * 1024 * 1024
#: The folder of a dataset that keeps a run's digest in place of its log. Spark skips such names.
_STORED: Final = "_digest"


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
        cached: Whether to use and write a cache.
        run_id: Return this run alone, as if no other had written to the folder; the begin of an id will do.

    Raises:
        LogError: There is no such run.
    """
    files, digest = read_everything(executor, progress, cached)
    if run_id is not None:
        kept = only_run(files, find_run_id(executor.folder, files, run_id))
        files, digest = kept, only_files(digest, files, kept)
    known = RunFiles(files)
    return known, only_newest_runs(known, digest)


def read_everything(
    executor: Executor, progress: Progress | None = None, cached: bool = True
) -> tuple[list[File], Digest]:
    """Return the log files, also those that `prune` deleted, and the digest of all runs that wrote them."""
    if is_dataset(executor.home):
        return _load_stored(executor.home)
    return with_pruned(executor.home, *_read_log(executor, progress, cached))


def _read_log(executor: Executor, progress: Progress | None, cached: bool) -> tuple[list[File], Digest]:
    files = executor.list_files()
    worthwhile = cached and is_worthwhile(files)
    known, old = _load(executor.home) if worthwhile else ([], concat_digests([]))
    # What could not be read may have been on a node that has come back.
    unchanged = {key_of(file): file for file in known if file.unreadable is None}
    changed = [file for file in files if key_of(file) not in unchanged]
    if known and not changed and len(files) == len(known):
        return known, old
    fresh, new = digest_files(executor, changed, progress)
    by_path = {file.path: file for file in fresh}
    merged = [by_path.get(file.path) or unchanged[key_of(file)] for file in files]
    whole = join_digests([(known, old), (fresh, new)], merged) if known else new
    if worthwhile:
        _save(executor.home, merged, whole)
    return merged, whole


def only_newest_runs(files: Sequence[File], digest: Digest) -> Digest:
    """Drop the rows that older runs wrote."""
    counts = newest_run_filter(files)
    left_out = [
        number
        for number, (file, run_id) in enumerate((file, run) for file in files for run in file.runs)
        if not counts(file, run_id)
    ]
    kept = digest.filter(~pl.col("source").is_in(left_out)) if left_out else digest
    return replace(kept, steps=_with_launches(files, kept.steps))


def _with_launches(files: Sequence[File], steps: pl.DataFrame) -> pl.DataFrame:
    """Number the launches that wrote steps; files without a header do not tell."""
    runs = [run_id for file in files for run_id in file.runs]
    known = {run_id: number for number, run_id in enumerate(sorted({run for run in runs if run is not None}))}
    numbers = pl.Series([None if run is None else known[run] for run in runs], dtype=pl.Int64)
    return steps.with_columns(launch=numbers.gather(steps["source"]))


def is_worthwhile(files: Sequence[File]) -> bool:
    """Return whether files are large enough for a cache; smaller ones are read each time."""
    return sum(file.size for file in files) >= _WORTHWHILE_BYTES


def is_dataset(folder: Path) -> bool:
    """Return whether a folder holds a run as a dataset, without its log."""
    return (folder / _STORED).is_dir()


def _load_stored(folder: Path) -> tuple[list[File], Digest]:
    files, digest = _load(folder)
    if not files:
        raise LogError(f"{folder}: this dataset is incomplete, or of another version; export the log again")
    return files, digest


def store_digest(
    folder: Path, files: Sequence[File], digest: Digest, tables: Mapping[str, pl.DataFrame]
) -> None:
    """Keep in a dataset what answers need in place of the log.

    Args:
        folder: The dataset's folder.
        files: The log files.
        digest: Their digest.
        tables: What `cached_table` shall return for this dataset, by name.
    """
    home = SafeFolder(folder, (_STORED,))
    home.delete_drafts(at_once=True)  # the caller holds the dataset's lock
    for name, table in tables.items():
        save_table(home, name, state_of(files), table)
    save_digest(home, files, digest)


def homes(folder: Path) -> list[SafeFolder]:
    """Return the folders in which a cache may lie: the run's own, then the user's cache folder."""
    if is_dataset(folder):
        return [SafeFolder(folder, (_STORED,))]
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    name = hashlib.sha256(os.fsencode(folder.absolute())).hexdigest()[:16]
    both = [SafeFolder(folder, (".cache",)), SafeFolder(root, ("sglang-instrument", name))]
    # polars cannot open a file whose name is not UTF-8.
    return [home for home in both if str(home.path).encode(errors="ignore") == os.fsencode(home.path)]


def _load(folder: Path) -> tuple[list[File], Digest]:
    for home in homes(folder):
        try:
            return load_digest(home.path)
        except (OSError, ValueError, msgspec.MsgspecError, pl.exceptions.PolarsError):
            continue
    return [], concat_digests([])


def _save(folder: Path, files: list[File], digest: Digest) -> None:
    for home in homes(folder):
        try:
            home.make()
            save_digest(home, files, digest)
        except (OSError, pl.exceptions.PolarsError):
            continue
        return


def state_of(files: Sequence[File]) -> str:
    """Return a name for the state of some files."""
    state = repr((VERSION, [(key_of(file), file.runs) for file in files]))
    return hashlib.sha256(state.encode()).hexdigest()[:12]
