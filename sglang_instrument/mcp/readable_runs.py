"""Know which runs an agent may read: those in the folders named at the start, and nothing beyond a link."""

import os
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sglang_instrument.analysis.reading.folders import is_run_folder
from sglang_instrument.analysis.run.experiments import experiments_in
from sglang_instrument.errors import LogError
from sglang_instrument.plain_text import plain

_MOST_NAMED: Final = 8
_RUN_ID: Final = re.compile(r"[\w.-]{1,80}")


@dataclass(frozen=True)
class ReadableRun:
    """A run that may be read.

    Attributes:
        name: What an agent calls it: the name of its folder.
        folder: Its folder.
        root: The folder, named at the start, in which all of it lies.
    """

    name: str
    folder: Path
    root: Path


class ReadableRuns:
    """The runs below some folders; what is new there is found at each question.

    Args:
        folders: Folders of one experiment, or of several.

    Raises:
        LogError: A folder does not exist.
    """

    def __init__(self, folders: Sequence[Path]) -> None:
        for folder in folders:
            if not folder.is_dir():
                raise LogError(f"{folder}: no such folder; name the folder of an experiment, or of several")
        self.folders = [folder.absolute() for folder in folders]

    def all(self) -> list[ReadableRun]:
        """Return the runs by name; a name that two folders have is the first one's."""
        runs: dict[str, ReadableRun] = {}
        for readable in self._each():
            if _lies_in(readable.folder, readable.root):
                runs.setdefault(readable.name, readable)
        return list(runs.values())

    def _each(self) -> Iterator[ReadableRun]:
        for root in self.folders:
            if is_run_folder(root):
                yield ReadableRun(root.name, root, root)
            else:
                yield from (ReadableRun(name, root / name, root) for name in experiments_in(root))

    def path_of(self, run: str) -> str:
        """Return the path that the commands take for a run: NAME, or NAME@RUN for one of its launches.

        Raises:
            LogError: No run has this name, or a link in it leads out of the folder; the message says what is
                right.
        """
        name, _, run_id = run.partition("@")
        readable = next((readable for readable in self.all() if readable.name == name), None)
        if readable is None:
            names = [readable.name for readable in self.all()]
            more = f" and {len(names) - _MOST_NAMED} more" if len(names) > _MOST_NAMED else ""
            known = f"{', '.join(names[:_MOST_NAMED])}{more}" if names else "none yet"
            raise LogError(f"no run {plain(name[:100])!r}; the runs are: {known}")
        if run_id and not _RUN_ID.fullmatch(run_id):
            raise LogError("a launch is named by its id, as in gsm8k@20261123T0815; `runs` lists them")
        demand_no_way_out(readable)
        return f"{readable.folder}@{run_id}" if run_id else str(readable.folder)


def demand_no_way_out(readable: ReadableRun) -> None:
    """Raise LogError if a link in the folder of a run leads out of the folder named at the start.

    Of a run that goes on, or is pruned meanwhile, folders may vanish.
    """
    waiting = [readable.folder]
    while waiting:
        with suppress(FileNotFoundError), _entries(waiting.pop()) as entries:
            for entry in entries:
                if entry.is_symlink() and not _lies_in(Path(entry.path), readable.root):
                    where = f"{plain(entry.path)} is a link that leads out of {plain(str(readable.root))}"
                    raise LogError(f"{where}: such a run is not read")
                if entry.is_dir(follow_symlinks=False):
                    waiting.append(Path(entry.path))


@contextmanager
def _entries(folder: Path) -> Iterator[Iterator[os.DirEntry[str]]]:
    try:
        with os.scandir(folder) as entries:
            yield entries
    except PermissionError as error:
        raise LogError(f"{plain(str(folder))} may not be listed: {error.strerror}") from None


def _lies_in(path: Path, root: Path) -> bool:
    try:
        return path.resolve().is_relative_to(root.resolve())
    except (OSError, RuntimeError):  # a loop of links
        return False
