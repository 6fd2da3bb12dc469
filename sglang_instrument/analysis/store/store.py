"""Find in a store what is known of log files, and add to it what was read of others.

The log always wins: a part stands for a file only as long as path, inode, size and modification time are
those of the index. Whatever cannot be read in a store is made again; where none can be written there is none.
"""

import time
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Final

from sglang_instrument.analysis.digests.digest import Digest, concat_digests
from sglang_instrument.analysis.digests.file_sources import Key, join_digests, key_of, only_files
from sglang_instrument.analysis.reading.files import File, ended_paths
from sglang_instrument.analysis.store.bounds import bound_user_cache
from sglang_instrument.analysis.store.homes import homes, locked
from sglang_instrument.analysis.store.parts import (
    DAMAGED,
    PARTS,
    VERSION,
    Index,
    Part,
    files_of,
    read_index,
    read_part,
    records_of,
    write_index,
    write_part,
)
from sglang_instrument.analysis.store.ranges import add_ranges, counting_ranges, has_grown
from sglang_instrument.errors import LogError
from sglang_instrument.safe_files.folder import SafeFolder

_FULL: Final = 100_000  # records of a part
_SMALL: Final = _FULL // 4
_MOST_SMALL: Final = 8  # parts; more are put together
_QUIET_SEC: Final = 60.0  # whoever writes a log writes more often while requests are open


def load(folder: Path, files: Sequence[File]) -> tuple[list[File], Digest]:
    """Return those of these files that the store of a run knows, as they were read, and their digest.

    Args:
        folder: The run's folder.
        files: Its log files, as listed.
    """
    wanted = {key_of(file) for file in files}
    pieces: list[tuple[Sequence[File], Digest]] = []
    for home in homes(folder):
        for part in read_index(home).parts:
            keys = wanted.intersection(part.files)
            if not keys:
                continue
            try:
                stored, digest = read_part(home, part)
            except DAMAGED:
                continue
            pieces.append((_chosen(stored, keys), _of_files(digest, stored, keys)))
            wanted -= keys
            del digest
    by_key = {key_of(file): file for stored, _ in pieces for file in stored}
    known = [by_key[key] for file in files if (key := key_of(file)) in by_key]
    return known, join_digests(pieces, known) if pieces else concat_digests([])


@dataclass(frozen=True)
class HeldPart:
    """A part of a store that stands for files of a run.

    Attributes:
        home: The store.
        name: Of the part.
        files: The log files that it was made of.
        counting: Those of them that it stands for: they are as they were, and no part before has them.
    """

    home: SafeFolder
    name: str
    files: list[File]
    counting: list[File]

    @property
    def folder(self) -> Path:
        """Where its tables lie."""
        return self.home.path / PARTS / self.name


def held_parts(folder: Path, files: Sequence[File]) -> list[HeldPart]:
    """Return the parts of the store of a run that stand for some of these files."""
    wanted = {key_of(file) for file in files}
    parts = []
    for home in homes(folder):
        for part in read_index(home).parts:
            keys = wanted.intersection(part.files)
            if not keys:
                continue
            try:
                stored = files_of(home, part)
            except DAMAGED:
                continue
            parts.append(HeldPart(home, part.name, stored, _chosen(stored, keys)))
            wanted -= keys
    return parts


def _chosen(files: Sequence[File], keys: Collection[Key]) -> list[File]:
    return [file for file in files if key_of(file) in keys]


def _of_files(digest: Digest, files: Sequence[File], keys: Collection[Key]) -> Digest:
    return only_files(digest, files, _chosen(files, keys))


def save(
    folder: Path, files: Sequence[File], digest: Digest, read: Sequence[File], of_some: bool = False
) -> None:
    """Add to the store of a run what it lacks, where that is possible: of files at rest, and of growing ones.

    Args:
        folder: The run's folder.
        files: Its log files.
        digest: Their digest.
        read: Those of the files that were read as lines: a part that should have had one is damaged.
        of_some: Whether it has other files, too, whose parts stay as they are.
    """
    resting, damaged = _at_rest(files), set(map(key_of, read))
    growing = [file for file in files if file.path not in resting]
    lost = {file.path for file in read if file.range is None}  # ranges that they should have had are damaged
    ranged = [file for file in files if file.path not in lost]
    for home in homes(folder):
        index, apart = _split(read_index(home), files, of_some, damaged)
        held = counting_ranges(folder, ranged, index.ranges)
        lacks_ranges = sum(map(len, held.values())) < len(index.ranges) or any(
            has_grown(file, held.get(file.path, ())) for file in growing
        )
        if not lacks_ranges and not _lacks(index, apart, files, resting):
            return
        try:
            with locked(home):
                index, apart = _split(read_index(home), files, of_some, damaged)
                parts = _added(home, index, apart, files, digest, resting)
                held = counting_ranges(folder, ranged, index.ranges)
                ranges = add_ranges(home, folder, growing, held)
                write_index(home, Index(VERSION, [*apart.parts, *parts], ranges=[*apart.ranges, *ranges]))
        except BlockingIOError:  # another command writes the same
            return
        except (LogError, *DAMAGED):  # read only, full, a link is in its place, or a part cannot be read
            continue
        with suppress(OSError):
            bound_user_cache(home)
        return


def _split(
    index: Index, files: Sequence[File], of_some: bool, damaged: Collection[Key]
) -> tuple[Index, Index]:
    """Return the sound parts of an index that are of these files alone, and those that are of others, too."""
    paths = {file.path for file in files}
    sound = [part for part in index.parts if not any(key in damaged for key in part.files)]
    apart = Index(VERSION, [])
    if of_some:
        apart.parts = [part for part in sound if any(path not in paths for path, *_ in part.files)]
        apart.ranges = [held for held in index.ranges if held.path not in paths]
    parts = [part for part in sound if part.name not in apart.names]
    ranges = [held for held in index.ranges if held.name not in apart.names]
    return Index(VERSION, parts, ranges=ranges), apart


def _lacks(index: Index, apart: Index, files: Sequence[File], resting: Collection[str]) -> bool:
    """Return whether parts should be written, or deleted."""
    now = {key_of(file) for file in files}
    return bool({key_of(file) for file in files if file.path in resting} - _keys_of(index, apart)) or any(
        now.isdisjoint(part.files) for part in index.parts
    )


def _keys_of(*indexes: Index) -> set[Key]:
    return {key for index in indexes for part in index.parts for key in part.files}


def _added(
    home: SafeFolder,
    index: Index,
    apart: Index,
    files: Sequence[File],
    digest: Digest,
    resting: Collection[str],
) -> list[Part]:
    """Return the parts of files: those that stay, and new ones in place of worn and small ones, too."""
    keys = {key_of(file) for file in files}
    staying = _staying(index.parts, keys)
    held = _keys_of(Index(VERSION, staying), apart)
    missing = [file for file in files if file.path in resting and key_of(file) not in held]
    new = []
    for group in group_files(missing):
        tables = only_files(digest, files, group).tables()
        new.append(write_part(home, group, tables))
    return [*staying, *new]


def _staying(parts: Sequence[Part], keys: Collection[Key]) -> list[Part]:
    """Return the parts of which more than half still counts; many small ones go, to become a larger one."""
    useful = [part for part in parts if 2 * sum(key in keys for key in part.files) > len(part.files)]
    return without_many_small(useful)


def without_many_small(parts: Sequence[Part]) -> list[Part]:
    """Return parts without the small ones, if there are many: their files go into larger parts."""
    large = [part for part in parts if part.records >= _SMALL]
    return large if len(parts) - len(large) > _MOST_SMALL else list(parts)


def group_files(files: Sequence[File]) -> Iterator[list[File]]:
    """Yield files that make up a part: whole folders, until they hold enough records."""
    group: list[File] = []
    for _, in_folder in groupby(files, key=lambda file: file.folder):
        group += in_folder
        if records_of(group) >= _FULL:
            yield group
            group = []
    if group:
        yield group


def _at_rest(files: Sequence[File]) -> set[str]:
    """Return the paths of files that were closed, or have not changed for a while, with all of their step."""
    latest_ns = (time.time() - _QUIET_SEC) * 1e9
    ended = ended_paths(files)
    restless = {_step_of(file) for file in files if file.mtime_ns > latest_ns and file.path not in ended}
    return {file.path for file in files if _step_of(file) not in restless and file.unreadable is None}


def _step_of(file: File) -> str:
    """Return the folder of a step's file; outside of steps, each file is by itself."""
    return file.path if file.place is None or file.place.step is None else file.folder
