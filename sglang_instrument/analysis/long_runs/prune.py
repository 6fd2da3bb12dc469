"""Keep the digest of log files, then delete them: never before the digest is safe on the disk."""

import fcntl
import os
import shutil
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from itertools import groupby
from pathlib import Path
from typing import Final

import msgspec
import polars as pl

from sglang_instrument.analysis.answers.engine_requests import Fields, records_in
from sglang_instrument.analysis.answers.join import has_engine_logs
from sglang_instrument.analysis.digests.file_sources import key_of, number_sources, only_files, renumber
from sglang_instrument.analysis.digests.parquet import write_parquet
from sglang_instrument.analysis.digests.stored_digest import load_digest, save_digest
from sglang_instrument.analysis.executors.executor import Progress
from sglang_instrument.analysis.long_runs.plan import Plan
from sglang_instrument.analysis.reading.files import File
from sglang_instrument.analysis.run.batch_job import BatchJob
from sglang_instrument.analysis.run.opening import Run
from sglang_instrument.analysis.run.pruned import CALLS, PATHS, PRUNED, pruned_folders
from sglang_instrument.errors import LogError
from sglang_instrument.schema import LOG_OPENED

_LOCK: Final = ".lock"
_DRAFT: Final = ".draft-"


@dataclass
class Outcome:
    """What `prune` did.

    Attributes:
        files: How many files it deleted.
        freed: Their bytes, without those of files with a second name.
        kept: The bytes of what it keeps in place of them.
        left: Files that stay although they were to go, each with the reason.
    """

    files: int = 0
    freed: int = 0
    kept: int = 0
    left: dict[str, str] = field(default_factory=dict)


def prune(plan: Plan, progress: Progress | None = None) -> Outcome:
    """Do what was planned. A file that changed since then stays.

    Raises:
        LogError: Another `prune` works on this run, or the digest cannot be written. Nothing was deleted.
    """
    folder = plan.run.folder
    with _locked(folder):
        try:
            kept = _keep(plan, progress)
        except (OSError, pl.exceptions.PolarsError) as error:
            _remove_drafts(folder / PRUNED)
            raise LogError(f"{folder}: nothing was deleted: {error}") from error
        outcome = Outcome(kept=kept)
        for part, files in groupby(plan.drop, key=lambda file: file.folder):
            _delete(folder, part, list(files), outcome)
    return outcome


@contextmanager
def _locked(folder: Path) -> Iterator[None]:
    """Keep other calls from this folder, where the file system has locks."""
    home = folder / PRUNED
    try:
        home.mkdir(exist_ok=True)
        if home.is_symlink():
            raise OSError(f"{home} is a link to another folder")
        lock = os.open(home / _LOCK, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise LogError(f"{folder}: nothing was deleted: {error}") from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        raise LogError(f"another `prune` works on {folder}") from None
    except OSError:  # without locks: each call has a folder of its own, and deletes only what that holds
        pass
    try:
        yield
    finally:
        os.close(lock)


def _keep(plan: Plan, progress: Progress | None) -> int:
    """Write the digest of what goes into a new folder of `.pruned`, and read it again; return its bytes."""
    home = plan.run.folder / PRUNED
    known = {key_of(file) for one in pruned_folders(plan.run.folder) for file in _files_in(one)}
    files = [file for file in plan.drop if key_of(file) not in known]
    if not files:  # an earlier call was interrupted while it deleted
        return 0
    _remove_drafts(home)
    now = datetime.now(timezone.utc)
    name = f"{now:%Y%m%dT%H%M%S}-{os.urandom(4).hex()}"
    draft = home / f"{_DRAFT}{name}"
    pruned_us = int(time.time() * 1e6)
    gone = [msgspec.structs.replace(file, pruned_us=pruned_us) for file in files]
    save_digest(draft, gone, only_files(plan.whole, plan.run.files, files))
    write_parquet(_event_paths(plan.run, files, progress), draft / f"{PATHS}.parquet")
    if has_engine_logs(plan.run):
        write_parquet(_engine_calls(plan.run, files), draft / f"{CALLS}.parquet")
    for path in (*draft.iterdir(), draft):
        _sync(path)
    draft.rename(home / name)
    _sync(home)
    if list(map(key_of, _files_in(home / name))) != list(map(key_of, gone)):
        raise OSError(f"{home / name} does not hold what was written to it")
    return sum(path.stat().st_size for path in (home / name).iterdir())


def _files_in(home: Path) -> list[File]:
    """Return the files whose digest a folder holds; [] if it cannot be read."""
    try:
        return load_digest(home)[0]
    except (OSError, ValueError, msgspec.MsgspecError, pl.exceptions.PolarsError):
        return []


def _remove_drafts(home: Path) -> None:
    """Remove what killed calls began to write."""
    for draft in home.glob(f"{_DRAFT}*"):
        shutil.rmtree(draft, ignore_errors=True)


def _event_paths(run: Run, files: Sequence[File], progress: Progress | None) -> pl.DataFrame:
    read, tables = run.executor.read(files, BatchJob("paths"), progress)
    return renumber(tables["paths"], read, files)


def _engine_calls(run: Run, files: Sequence[File]) -> pl.DataFrame:
    """Return the records that name requests of an engine, as `engine_requests.iter_records` needs them."""
    numbers, rows = number_sources(files), []
    for file, chunks in run.read_marked(files, (LOG_OPENED, "rid", "rids")):
        for run_id, record in records_in(chunks):
            source = numbers.get((*key_of(file), run_id))
            if source is not None and record.extra is not None and _names_a_request(record.extra):
                rows.append((source, msgspec.json.encode(record).decode()))
    return pl.DataFrame(rows, schema={"source": pl.Int64, "record": pl.String}, orient="row")


def _names_a_request(fields: Fields) -> bool:
    return fields.rid is not None or fields.rids is not None


def _sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _delete(folder: Path, part: str, files: Sequence[File], outcome: Outcome) -> None:
    """Delete files of one folder of the run, through descriptors that follow no link."""
    flags = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
    try:
        inside = os.open(folder / part, flags | os.O_NOFOLLOW)
    except OSError as error:
        outcome.left.update(dict.fromkeys((file.path for file in files), _reason(error)))
        return
    try:
        for file in files:
            try:
                _delete_one(inside, file, outcome)
            except OSError as error:
                outcome.left[file.path] = _reason(error)
    finally:
        os.close(inside)
    try:
        (folder / part).rmdir()
    except OSError:  # something else lies there
        pass


def _delete_one(inside: int, file: File, outcome: Outcome) -> None:
    name = file.path.rpartition("/")[2]
    about = os.stat(name, dir_fd=inside, follow_symlinks=False)
    if not stat.S_ISREG(about.st_mode):
        outcome.left[file.path] = "it is no regular file any more"
    elif (about.st_size, about.st_mtime_ns) != (file.size, file.mtime_ns):
        outcome.left[file.path] = "it changed meanwhile"
    else:
        os.unlink(name, dir_fd=inside)
        outcome.files += 1
        outcome.freed += about.st_size if about.st_nlink == 1 else 0


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
