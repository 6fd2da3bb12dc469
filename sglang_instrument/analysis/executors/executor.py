"""What reads a run's files: worker processes of this machine, or tasks on the nodes of a Ray cluster."""

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Protocol

import polars as pl

from sglang_instrument.analysis.reading.files import File
from sglang_instrument.analysis.reading.reader import Reading

Tables = dict[str, pl.DataFrame]
#: Files as read, and tables; `source` numbers each pair of file and run, in order.
BatchResult = tuple[list[File], Tables]
#: (number of files read so far, number of files to read)
Progress = Callable[[int, int], object]


class Job(Protocol):
    """What to make of files. It travels to other processes, so it is pickled."""

    @property
    def with_extra(self) -> bool:
        """Whether it needs all fields of a record."""
        ...

    def run(self, folder: Path, batch: Sequence[File]) -> BatchResult:
        """Read files below a folder."""
        ...

    def make(self, reading: Reading) -> Tables:
        """Return the tables of files that were read elsewhere."""
        ...


class Executor(Protocol):
    """Where a run's files lie, and what reads them.

    Attributes:
        folder: The run's folder, as the user names it.
        home: A folder of this machine with the descriptions of the run's processes and what `prune` kept of
            its files; a cache may lie there.
        is_far: Whether to make tables where the files lie rather than to bring the files here.
        lost: By node that died, the files that only it held.
    """

    folder: Path
    home: Path
    is_far: bool
    lost: dict[str, list[str]]

    def list_files(self) -> list[File]:
        """Return the log files without reading them, in the order of their steps."""
        ...

    def list_others(self) -> list[str]:
        """Return what lies in the folder besides logs, in order; folders end with a slash."""
        ...

    def read(self, files: Sequence[File], job: Job, progress: Progress | None = None) -> BatchResult:
        """Return the files as read and the job's tables, sorted by `source`: the same in every executor."""
        ...

    def bring(self, files: Sequence[File]) -> Path:
        """Return a folder of this machine with these log files; bring here first those that lie elsewhere.

        Files whose records a part holds are not in it.
        """
        ...
