"""Keep log files as Parquet, then delete them: never before all that they hold is safe on the disk."""

import errno
import os
import re
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from datetime import datetime, timezone
from itertools import groupby
from pathlib import Path
from typing import ClassVar, Final

import msgspec
import polars as pl

from sglang_instrument.analysis.digests.file_sources import key_of, only_files
from sglang_instrument.analysis.executors.executor import BatchResult, Progress, Tables
from sglang_instrument.analysis.executors.local import LocalExecutor
from sglang_instrument.analysis.long_runs.plan import Plan
from sglang_instrument.analysis.reading.files import File
from sglang_instrument.analysis.reading.folders import PRUNED
from sglang_instrument.analysis.reading.reader import Reading, read_files
from sglang_instrument.analysis.run.pruned import pruned_folders, read_kept
from sglang_instrument.analysis.store.part_records import keep_all
from sglang_instrument.analysis.store.parts import DAMAGED, fill_part
from sglang_instrument.analysis.store.store import group_files
from sglang_instrument.errors import LogError
from sglang_instrument.safe_files.folder import SafeFolder, is_draft

_LOCK: Final = ".lock"
_DRAFT: Final = ".draft-"
_DRAFTS: Final = re.compile(r"\.draft-\d{8}T\d{6}-[0-9a-f]{1,8}")
_IN_DRAFTS: Final = re.compile(r"[a-z_]+(-[0-9a-f]{12})?\.(json|parquet)")


@dataclass
class Outcome:
    """What `prune` did.

    Attributes:
        files: How many files it deleted.
        freed: Their bytes, without those of files with a second name.
        kept_bytes: The bytes of what it keeps in place of them.
        left: Files that stay although they were to go, each with the reason.
    """

    files: int = 0
    freed: int = 0
    kept_bytes: int = 0
    left: dict[str, str] = field(default_factory=dict)


def prune(plan: Plan, progress: Progress | None = None) -> Outcome:
    """Do what was planned. A file that changed since then stays.

    Raises:
        LogError: Another `prune` works on this run, or the digest cannot be written. Nothing was deleted.
    """
    folder = plan.run.folder
    home = SafeFolder(folder, (PRUNED,))
    with _locked(home):
        try:
            kept_bytes = _keep(plan, home, progress)
        except (OSError, pl.exceptions.PolarsError) as error:
            _remove_drafts(home)
            raise LogError(f"{folder}: nothing was deleted: {error}") from error
        outcome = Outcome(kept_bytes=kept_bytes)
        for part, files in groupby(plan.drop, key=lambda file: file.folder):
            _delete(folder, part, list(files), outcome)
    return outcome


@contextmanager
def _locked(home: SafeFolder) -> Iterator[None]:
    """Keep other calls out, where the disk has locks; elsewhere each has a folder of its own in `.pruned`."""
    with ExitStack() as stack:
        try:
            stack.enter_context(home.locked(_LOCK))
        except BlockingIOError:
            raise LogError(f"another `prune` works on {home.root}") from None
        except OSError as error:
            raise LogError(f"{home.root}: nothing was deleted: {error}") from error
        yield


def _keep(plan: Plan, home: SafeFolder, progress: Progress | None) -> int:
    """Write all of what goes into new folders of `.pruned`, and read it again; return its bytes."""
    known = {key_of(file) for folder_kept in pruned_folders(home.root) for file in _files_in(folder_kept)}
    files = [file for file in plan.drop if key_of(file) not in known and _is_as_it_was(home.root, file)]
    if not files:  # an earlier call was interrupted while it deleted, or all changed meanwhile
        return 0
    _remove_drafts(home)
    now = datetime.now(timezone.utc)
    groups = {f"{now:%Y%m%dT%H%M%S}-{os.urandom(4).hex()}": group for group in group_files(files)}
    drafts = {group[0].path: f"{_DRAFT}{name}" for name, group in groups.items()}
    executor = LocalExecutor(home.root)
    executor.read_batches(list(groups.values()), _KeepJob(home, drafts), progress)
    pruned_us = int(time.time() * 1e6)
    for name, group in groups.items():
        draft = home / f"{_DRAFT}{name}"
        gone = [msgspec.structs.replace(file, pruned_us=pruned_us) for file in group]
        fill_part(draft, gone, only_files(plan.whole, plan.run.files, group).tables(), sync=True)
        home.rename_folder(draft.inside[-1], name)
        if list(map(key_of, _files_in((home / name).path))) != list(map(key_of, gone)):
            raise OSError(f"{(home / name).path} does not hold what was written to it")
    return sum(path.stat().st_size for name in groups for path in (home / name).path.iterdir())


def _is_as_it_was(folder: Path, file: File) -> bool:
    """Return whether a file did not change since the plan was made; else it stays, as `_delete_one` says."""
    inside, name = SafeFolder(folder).split(file.path)
    try:
        about = inside.stat(name)
    except OSError:
        return False
    return about is not None and (about.st_size, about.st_mtime_ns) == (file.size, file.mtime_ns)


@dataclass(frozen=True)
class _KeepJob:
    """Write all that files hold into the folder for the first of them."""

    home: SafeFolder
    folders: dict[str, str]
    with_extra: ClassVar = True

    def run(self, folder: Path, batch: Sequence[File]) -> BatchResult:
        reading = read_files(folder, batch, with_extra=self.with_extra)
        keep_all(self.home / self.folders[batch[0].path], folder, reading)
        return reading.files, {}

    def make(self, reading: Reading) -> Tables:
        return {}


def _files_in(home: Path) -> list[File]:
    """Return the files that a folder keeps; [] if it cannot be read."""
    try:
        return read_kept(home)[0]
    except DAMAGED:
        return []


def _remove_drafts(home: SafeFolder) -> None:
    """Remove what killed calls began to write."""
    for name in filter(_DRAFTS.fullmatch, home.names()):
        (home / name).delete_those(
            lambda file_name: is_draft(file_name) or _IN_DRAFTS.fullmatch(file_name) is not None
        )
        home.delete_folder(name)


def _delete(folder: Path, part: str, files: Sequence[File], outcome: Outcome) -> None:
    """Delete files of one folder of the run."""
    inside, name = SafeFolder(folder).split(part)
    for file in files:
        try:
            _delete_one(inside / name, file, outcome)
        except OSError as error:
            outcome.left[file.path] = _reason(error)
    inside.delete_folder(name)


def _delete_one(inside: SafeFolder, file: File, outcome: Outcome) -> None:
    name = file.path.rpartition("/")[2]
    about = inside.stat(name)
    if about is None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))
    if not stat.S_ISREG(about.st_mode):
        outcome.left[file.path] = "it is no regular file any more"
    elif (about.st_size, about.st_mtime_ns) != (file.size, file.mtime_ns):
        outcome.left[file.path] = "it changed meanwhile"
    else:
        inside.delete(name)
        outcome.files += 1
        outcome.freed += about.st_size if about.st_nlink == 1 else 0


def _reason(error: OSError) -> str:
    return error.strerror or str(error)
