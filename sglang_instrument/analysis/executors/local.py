"""Read the files of a run on this machine, in up to one process per core."""

import os
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Final

from sglang_instrument.analysis.executors.batches import (
    in_order,
    join_results,
    split_files,
    worthwhile_processes,
)
from sglang_instrument.analysis.executors.executor import BatchResult, Job, Progress
from sglang_instrument.analysis.executors.worker_processes import read_in_processes
from sglang_instrument.analysis.reading.files import File
from sglang_instrument.analysis.reading.folders import UnreadableFolderError, entries, log_files, other_files
from sglang_instrument.collect import on_node
from sglang_instrument.processors import processors

_MOST_PROCESSES: Final = 16


class LocalExecutor:
    """The executor of a run in a folder of this machine.

    Args:
        folder: The run's folder.
        most_processes: Read in no more processes than this.
        only: Names of folders in it, as if there were no others; None stands for all.
        home: The folder to read in place of it.
    """

    is_far = False

    def __init__(
        self,
        folder: Path,
        most_processes: int = _MOST_PROCESSES,
        only: Collection[str] | None = None,
        home: Path | None = None,
    ) -> None:
        self.folder = folder
        self.home = home or folder
        self.lost: dict[str, list[str]] = {}
        self._most_processes = most_processes
        self._only = only

    def list_files(self) -> list[File]:
        """Return the log files without reading them, in the order of their steps."""
        return list_files(self.home, self._only)

    def list_others(self) -> list[str]:
        """Return what lies in the folder besides logs, in order; folders end with a slash."""
        return list(other_files(self.home, self._only))

    def read(self, files: Sequence[File], job: Job, progress: Progress | None = None) -> BatchResult:
        """Return the files as read and the job's tables, sorted by `source`."""
        return self.read_batches(split_files(files, self._processes_for(files)), job, progress)

    def _processes_for(self, files: Sequence[File]) -> int:
        return worthwhile_processes(files, min(processors(), self._most_processes))

    def read_batches(
        self, batches: Sequence[list[File]], job: Job, progress: Progress | None = None
    ) -> BatchResult:
        """Return the same as `read`, each batch read by itself."""
        files = [file for batch in batches for file in batch]
        processes = min(len(batches), self._processes_for(files))
        if processes > 1:
            coming = read_in_processes(self.home, batches, job, processes)
        else:
            coming = ((number, job.run(self.home, batch)) for number, batch in enumerate(batches))
        tell = progress or (lambda done, total: None)
        tell(0, len(files))
        parts: dict[int, BatchResult] = {}
        for number, part in coming:
            parts[number] = part
            tell(sum(len(batches[done]) for done in parts), len(files))
        return in_order(files, join_results([parts[number] for number in range(len(batches))]))

    def bring(self, files: Sequence[File]) -> Path:
        """Return the folder with these log files: the run's."""
        return self.home


def list_files(folder: Path, only: Collection[str] | None = None) -> list[File]:
    """Return the log files of a run's folder without reading them; `only` names folders in it."""
    files = []
    prefix = f"{folder}{os.sep}"  # relative_to() takes ten times as long, and there may be a million
    for path in log_files(folder, only):
        # Our writers use UTF-8 names only, and JSON cannot hold others: such a file is not read.
        name = str(path).removeprefix(prefix).encode(errors="backslashreplace").decode()
        try:
            if path.parent == folder:  # a folder that may not be listed
                name = f"{name}/"
                entries(path)
            stat = path.stat()
        except (OSError, UnreadableFolderError) as error:
            files.append(File(name, 0, 0, unreadable=str(error)))
            continue
        files.append(File(name, stat.st_size, stat.st_mtime_ns, inode=stat.st_ino))
    return files


def sizes_here(folder: Path) -> dict[str, tuple[int, int, int]]:
    """Return what lies in a run's folder of this machine: `on_node.sizes`."""
    return on_node.sizes_in(str(folder))
