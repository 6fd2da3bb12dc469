"""Read parts whose log is gone: those that `prune` keeps, in the folder `.pruned`, and those of a dataset.

Each call of `prune` adds folders to `.pruned` and never changes one: so a folder needs no other one, an
interrupted call loses nothing, and `collect` can bring it along. Earlier versions kept a digest in place of a
part, without records. A log file that is there wins over what is kept of it: where a deletion was
interrupted, or the file was put back.
"""

from collections.abc import Sequence
from datetime import datetime, timezone
from pathlib import Path
from typing import Final

import msgspec
import polars as pl

from sglang_instrument.analysis.digests.digest import Digest, concat_digests
from sglang_instrument.analysis.digests.earlier_digest import load_digest, stored_files
from sglang_instrument.analysis.digests.file_sources import Key, join_digests, key_of, only_files, renumber
from sglang_instrument.analysis.digests.parquet import read_table
from sglang_instrument.analysis.reading.files import Control, File
from sglang_instrument.analysis.reading.folders import PRUNED, in_order, parts_of_pruned
from sglang_instrument.analysis.store.parts import (
    DAMAGED,
    FILES,
    PARTS,
    index_of,
    is_dataset,
    listed_files,
    read_data,
    written_files,
)
from sglang_instrument.analysis.store.records import RECORDS
from sglang_instrument.errors import LogError
from sglang_instrument.safe_files.folder import SafeFolder

#: Names of tables in a folder of `.pruned`.
PATHS: Final = "event_paths"  # these two of earlier versions, in place of the records
CALLS: Final = "engine_calls"
_NAMED: Final = 8  # ranges of steps

_Process = tuple[str, str]  # folder and stem of a file's name: `.jsonl` and `.jsonl.zst` are one file


def with_pruned(
    folder: Path,
    files: Sequence[File],
    digest: Digest,
    only: Sequence[Path] | None = None,
    files_alone: bool = False,
) -> tuple[Sequence[File], Digest]:
    """Add the files of parts to those that are there; `pruned_us` of those that `prune` deleted says when.

    A folder that cannot be read stands among the files as one that is unreadable, so that answers say so.

    Args:
        folder: The run's folder.
        files: Its files that are there.
        digest: Their digest.
        only: Those of `pruned_folders` to look into; None stands for all.
        files_alone: Whether to leave the digests of parts where they are: rows of them are not added.

    Raises:
        LogError: The folder is a dataset whose index cannot be read.
    """
    homes = kept_folders(folder) if only is None else dict.fromkeys(only)
    if not homes:
        return files, digest
    parts, seen = [(files, files, digest)], set[Key]()
    by_process = _by_process(files)
    for home, counting in homes.items():
        try:
            files_kept, digest_kept = read_kept(home, files_alone)
        except DAMAGED as error:
            lost = File(_name_of(home), 0, 0, unreadable=str(error), pruned_us=0)
            parts.append(([lost], [lost], concat_digests([])))
            continue
        new = [file for file in files_kept if key_of(file) not in seen and not _is_there(file, by_process)]
        gone = [file for file in new if counting is None or key_of(file) in counting]
        seen.update(map(key_of, gone))
        parts.append((files_kept, gone, digest_kept))
    merged = sorted((file for _, gone, _ in parts for file in gone), key=lambda file: in_order(file.path))
    digests = [(gone, only_files(of_home, every, gone)) for every, gone, of_home in parts]
    return merged, join_digests(digests, merged)


def read_kept(home: Path, files_alone: bool = False) -> tuple[list[File], Digest]:
    """Return the files and the digest of a part; with `files_alone`, the digest may be empty.

    Raises:
        DAMAGED: It cannot be read.
    """
    if (home / FILES).exists():
        files, digest = (written_files(home)[1], concat_digests([])) if files_alone else read_data(home)
        part = _name_of(home) if (home / f"{RECORDS}.parquet").exists() else None
        return [msgspec.structs.replace(file, part=part) for file in files], digest
    files, digest = load_digest(home)
    return [msgspec.structs.replace(file, part=None) for file in files], digest


def _name_of(home: Path) -> str:
    return f"{home.parent.name}/{home.name}"


def list_kept(home: Path) -> list[tuple[str, int]]:
    """Return path and size of the files that a folder in `.pruned` keeps.

    Raises:
        DAMAGED: It cannot be read.
    """
    return listed_files(home) if (home / FILES).exists() else stored_files(home)


def kept_folders(folder: Path) -> dict[Path, set[Key] | None]:
    """Return the parts of a run whose log is gone, each with those of its files that count; None for all.

    Raises:
        LogError: The folder is a dataset whose index cannot be read.
    """
    parts: dict[Path, set[Key] | None] = dict.fromkeys(pruned_folders(folder))
    if is_dataset(folder):
        try:
            index = index_of(SafeFolder(folder))
        except DAMAGED as error:
            raise LogError(f"{folder}: this dataset is damaged; export the log again: {error}") from None
        parts.update({folder / PARTS / part.name: set(part.files) for part in index.parts})
    return parts


def pruned_folders(folder: Path) -> list[Path]:
    """Return the folders in `.pruned` of a run, the oldest first; drafts are hidden."""
    home = folder / PRUNED
    if not home.is_dir():
        return []
    return parts_of_pruned(home)


def kept_table(folder: Path, files: Sequence[File], name: str) -> pl.DataFrame | None:
    """Return a table of the files that earlier versions deleted among a run's files; None if none was kept.

    Args:
        folder: The run's folder.
        files: The run's files; `source` of the table numbers each pair of file and run in them.
        name: PATHS or CALLS.
    """
    wanted = {key_of(file) for file in files if not file.has_records}
    tables = []
    for home in pruned_folders(folder) if wanted else ():
        try:
            table = read_table(home / f"{name}.parquet")
            stored = read_kept(home)[0]
        except DAMAGED:
            continue  # `with_pruned` reports it; a run without engine logs has no CALLS
        gone = [file for file in stored if key_of(file) in wanted]
        wanted -= set(map(key_of, gone))
        tables.append(renumber(renumber(table, stored, gone), gone, files))
    return pl.concat(tables) if tables else None


def _by_process(files: Sequence[File]) -> dict[_Process, list[File]]:
    by_process: dict[_Process, list[File]] = {}
    for file in files:
        by_process.setdefault(_process(file), []).append(file)
    return by_process


def _process(file: File) -> _Process:
    return (file.folder, file.path) if file.place is None else (file.folder, file.place.stem)


def _is_there(gone: File, by_process: dict[_Process, list[File]]) -> bool:
    """Return whether a file that was to be deleted is there: as it was, or with more lines.

    The first line names the writer and the time. A writer that had to make the file again wrote another one.
    """
    same = _headers(gone)
    for file in by_process.get(_process(gone), ()):
        if _headers(file) == same and (same or file.size >= gone.size):
            return True
    return False


def _headers(file: File) -> list[Control]:
    return file.controls[:1]


def pruned_words(files: Sequence[File]) -> str:
    """Return "the records of steps 3, 5-9 were pruned on 2026-11-23", by the files that are gone."""
    places = [file.place for file in files if file.place is not None]
    steps = {(place.validate, place.step) for place in places if place.step is not None}
    named = [name_steps(kind, sorted(step for of, step in steps if of == kind)) for kind in (False, True)]
    last = max((file.pruned_us or 0 for file in files), default=0)
    return f"the records of {' and '.join(filter(None, named))} were pruned on {day_of(last)}"


def name_steps(validate: bool, steps: Sequence[int]) -> str:
    """Return "step 3", "steps 3, 5-9" or the same of validations; "" for none."""
    if not steps:
        return ""
    kind = f"{'validation' if validate else 'step'}{'s' if len(steps) > 1 else ''}"
    return f"{kind} {ranges(steps)}"


def ranges(steps: Sequence[int]) -> str:
    """Return sorted numbers in short: 3, 5-9; of many, the first ranges and the last."""
    runs: list[list[int]] = []
    for step in steps:
        if runs and step == runs[-1][-1] + 1:
            runs[-1][1:] = [step]
        else:
            runs.append([step])
    words = ["-".join(map(str, run)) for run in runs]
    return ", ".join(words if len(words) <= _NAMED else [*words[: _NAMED - 1], "...", words[-1]])


def day_of(time_us: int) -> str:
    """Return the day of a time in UTC."""
    return datetime.fromtimestamp(time_us / 1e6, timezone.utc).date().isoformat()
