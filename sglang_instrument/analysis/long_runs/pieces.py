"""Split a run that is too large for memory into pieces of some steps each, and open one after the other.

A piece is opened as if the run had only its steps, the one before and the one after: a step lasts until the
next one begins.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sglang_instrument.analysis.digests.digest import Digest
from sglang_instrument.analysis.digests.file_sources import only_files
from sglang_instrument.analysis.executors.batches import ZSTD_RATIO, weight
from sglang_instrument.analysis.executors.executor import Executor
from sglang_instrument.analysis.executors.files_on_nodes import sizes_on_nodes
from sglang_instrument.analysis.executors.local import LocalExecutor, sizes_here
from sglang_instrument.analysis.executors.on_ray import SMALL, RayExecutor
from sglang_instrument.analysis.reading.files import File
from sglang_instrument.analysis.reading.folders import PRUNED, is_part, others_among, place_at
from sglang_instrument.analysis.run.digest_of_run import stored_digest
from sglang_instrument.analysis.run.experiments import find_run
from sglang_instrument.analysis.run.logged_runs import split_run_id
from sglang_instrument.analysis.run.pruned import list_kept, pruned_folders, with_pruned
from sglang_instrument.analysis.store.earlier_datasets import is_earlier_dataset
from sglang_instrument.analysis.store.parts import DAMAGED, is_dataset
from sglang_instrument.errors import LogError

#: Of a run that is read as a whole: more takes more than about 2 GB.
MOST_FILES: Final = 50_000
MOST_BYTES: Final = 4 * 2**30
_PIECES: Final = 4  # at least, of a larger run; reading one takes about 1 GB
_LEAST_STEPS: Final = 8  # of a piece; each reads two more
_ENGINE: Final = "engine"


@dataclass(frozen=True)
class Size:
    """How many log files a folder has, and about how many bytes of text they are."""

    files: int
    text: int

    def __add__(self, other: "Size") -> "Size":
        return Size(self.files + other.files, self.text + other.text)


@dataclass(frozen=True, eq=False)
class Piece:
    """Some steps of a run.

    Attributes:
        steps: Their numbers; a validation has the number of its step. None for the engine's own logs.
        folders: Their folders.
        around: The folders of the step before and the step after.
        pruned: The folders in `.pruned` with what is now missing in all these folders.
        files: How many log files all these folders have.
        is_last: Whether no step of the run comes after them, so that they tell how it ended.
    """

    steps: range | None
    folders: list[str]
    around: list[str]
    pruned: list[str]
    files: int
    is_last: bool


@dataclass(frozen=True)
class Where:
    """Where the logs of a run lie: its folder, and `on` as for `open_run`."""

    folder: Path
    on: str | None

    def executor_of(self, piece: Piece) -> LocalExecutor | RayExecutor:
        """Return what reads a piece."""
        return self.executor([*piece.folders, *piece.around])

    def executor(self, only: Sequence[str]) -> LocalExecutor | RayExecutor:
        """Return what reads these folders of the run, as if there were no others."""
        if self.on is not None:
            return RayExecutor(self.folder, self.on, only)
        return LocalExecutor(self.folder, only=only)


def read_piece(piece: Piece, executor: Executor, files: Sequence[File]) -> tuple[Sequence[File], Digest]:
    """Return the files of a piece as read, also what `prune` deleted of it, and their digest."""
    read, digest = stored_digest(executor, files, of_some=True)
    if not piece.pruned:
        return read, digest
    homes = [executor.home / PRUNED / name for name in piece.pruned]
    every, merged = with_pruned(executor.home, read, digest, homes)
    wanted = {*piece.folders, *piece.around, PRUNED}  # the last: what cannot be read of it
    of_piece = [file for file in every if file.folder in wanted]
    return of_piece, only_files(merged, every, of_piece)


class LongRun:
    """A run that is read in pieces.

    Args:
        where: Where its logs lie.
        by_step: As the attribute.

    Attributes:
        where: The same.
        base: What reads it, without its steps.
        pieces: Its pieces, in the order of their steps; the engine's own logs come last.
        by_step: Whether the tables of its steps are wanted, too.
        folders_by_step: The folders of each step and of its validation, in order.
        others: What lies in its folder besides logs and folders with logs.
        is_pruned: Whether `prune` kept something of it.
        unreadable: Folders with what `prune` kept that cannot be read, with the reason.
    """

    def __init__(self, where: Where, by_step: bool = False) -> None:
        self.where = where
        self.by_step = by_step
        folder, on = where.folder, where.on
        by_name = joined_sizes([sizes_here(folder)] if on is None else sizes_on_nodes(folder, on))
        self.others = others_among([name for name in by_name if not is_part(name.rstrip("/"))])
        folders = {name[:-1]: size for name, size in by_name.items() if name.endswith("/")}
        self._sizes = {name: size for name, size in folders.items() if is_part(name) and name not in SMALL}
        self.is_pruned = f"{PRUNED}/" in by_name

    @property
    def is_large(self) -> bool:
        """Whether it is too large to be read as a whole."""
        size = self.size_of(self._sizes)
        return size.files > MOST_FILES or size.text > MOST_BYTES

    @property
    def bytes(self) -> int:
        """How many bytes of text its logs hold; of compressed ones, about."""
        return self.size_of(self._sizes).text

    @property
    def has_engine_logs(self) -> bool:
        """Whether the engine's processes wrote logs of their own, which no piece joins with its steps."""
        return _ENGINE in self._sizes

    def prepare(self) -> None:
        """Find the steps, what `prune` kept, and on nodes of a cluster the small files.

        Raises:
            InstrumentError: The nodes of the cluster lack this package.
        """
        self.base = self.where.executor(SMALL)
        self._pruned: dict[str, set[str]] = {}
        self.unreadable: dict[str, str] = {}
        for home in pruned_folders(self.base.home):
            try:
                deleted = list_kept(home)
            except DAMAGED as error:
                self.unreadable[f"{PRUNED}/{home.name}"] = str(error)
                continue
            self._pruned[home.name] = {path.partition("/")[0] for path, _ in deleted}
            for path, size in deleted:
                folder, text = path.partition("/")[0], weight(File(path, size, 0))
                self._sizes[folder] = self._sizes.get(folder, Size(0, 0)) + Size(1, text)
        by_step: dict[int, list[str]] = {}
        for name in sorted(self._sizes):
            place = place_at(f"{name}/worker_0.jsonl")
            if place is not None and place.step is not None:
                by_step.setdefault(place.step, []).append(name)
        self.folders_by_step = dict(sorted(by_step.items()))
        self.pieces = self._split()

    def _split(self) -> list[Piece]:
        """Return the pieces, each of about equally many files and bytes."""
        by_step = self.folders_by_step
        most = Size(MOST_FILES // _PIECES, MOST_BYTES // _PIECES)
        groups: list[list[int]] = []
        size = Size(0, 0)
        for step, folders in by_step.items():
            more = size + self.size_of(folders)
            full = more.files > most.files or more.text > most.text
            if not groups or (full and len(groups[-1]) >= _LEAST_STEPS):
                groups.append([])
                more = self.size_of(folders)
            groups[-1].append(step)
            size = more
        if len(groups) > 1 and len(groups[-1]) < _LEAST_STEPS:
            groups[-2:] = [groups[-2] + groups[-1]]
        pieces = []
        for number, steps in enumerate(groups):
            before = groups[number - 1][-1:] if number > 0 else []
            after = groups[number + 1][:1] if number + 1 < len(groups) else []
            around = [name for step in (*before, *after) for name in by_step[step]]
            folders = [name for step in steps for name in by_step[step]]
            files = self.size_of([*folders, *around]).files
            last = number == len(groups) - 1
            pruned = self.pruned_of([*folders, *around])
            pieces.append(Piece(range(steps[0], steps[-1] + 1), folders, around, pruned, files, last))
        if _ENGINE in self._sizes:
            pieces.append(Piece(None, [_ENGINE], [], [], self._sizes[_ENGINE].files, is_last=False))
        return pieces

    def pruned_of(self, folders: Collection[str]) -> list[str]:
        """Return the folders in `.pruned` with what is now missing in some of its folders."""
        return [name for name, gone in self._pruned.items() if not gone.isdisjoint(folders)]

    def size_of(self, folders: Collection[str]) -> Size:
        """Return how much lies in some of its folders."""
        return sum((self._sizes.get(name, Size(0, 0)) for name in folders), Size(0, 0))


def joined_sizes(of_nodes: Iterable[Mapping[str, tuple[int, int, int]]]) -> dict[str, Size]:
    """Return how much lies in the folders of a run, from what each node has: `on_node.sizes`.

    A folder that several nodes see alike is on a disk that they share, and counts once.
    """
    seen: dict[str, set[tuple[int, int, int]]] = {}
    for of_node in of_nodes:
        for name, measured in of_node.items():
            seen.setdefault(name, set()).add(measured)
    sizes = {
        name: [Size(files, size + packed * (ZSTD_RATIO - 1)) for files, size, packed in sizes_seen]
        for name, sizes_seen in seen.items()
    }
    return {name: sum(parts, Size(0, 0)) for name, parts in sizes.items()}


def large_run(path: Path, on: str | None, by_step: bool = False) -> LongRun | None:
    """Return a run that is too large to be read as a whole; None if it is not, or is no log of ours.

    Args:
        path: As for `open_run`. A launch that is chosen by its id is read as a whole.
        on: As for `open_run`.
        by_step: Whether the tables of its steps are wanted: of a run whose engines logged, too, pieces do not
            tell all of them.

    Raises:
        InstrumentError: There is no such cluster, or its nodes lack this package.
    """
    folder, run_id = split_run_id(path)
    if run_id is not None:
        return None
    if on is None:
        try:
            folder = find_run(folder)
        except LogError:  # another project's log, or nothing: `open_run` says so
            return None
        if is_dataset(folder) or is_earlier_dataset(folder):
            return None
    run = LongRun(Where(folder, on), by_step)
    if (not run.is_large and not run.is_pruned) or (by_step and run.has_engine_logs):
        return None
    run.prepare()
    return run if run.is_large else None
