"""Compute the numbers of finished steps, as `summary` has them, in the process that `Analyst` starts.

It keeps the digests of the last steps, so that each file is read once. It has the lowest priority.
"""

import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import msgspec
import polars as pl

from sglang_instrument.analysis.answers.steps import step_table
from sglang_instrument.analysis.ledger.ledger import Paths, step_ledger, worker_ledger
from sglang_instrument.analysis.reading.files import File
from sglang_instrument.analysis.run.batches import digest_files
from sglang_instrument.analysis.run.cache import list_files, only_newest_runs
from sglang_instrument.analysis.run.digest import Digest, concat_digests
from sglang_instrument.analysis.run.opening import Run
from sglang_instrument.live.analyst import Answer, Question
from sglang_instrument.live.counting.counts import folder_of
from sglang_instrument.live.state import StepDone

_MOST_DIGESTS: Final = 6  # of the workers' files of a step, or of the others


def main(folder: str) -> None:
    """Answer each line of stdin, a `Question`, by a line."""
    os.nice(19)
    finished = Finished(Path(folder))
    for line in sys.stdin.buffer:
        try:
            asked = msgspec.json.decode(line, type=Question)
            steps = finished.steps([*asked.folders, *asked.beside])
            answer = Answer([one for one in steps if folder_of((one.step, one.validate)) in asked.folders])
        except Exception as error:  # a step that cannot be read must not cost the later ones
            answer = Answer([], f"finished steps cannot be analysed: {error!r}")
        sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
        sys.stdout.buffer.flush()


class Finished:
    """The last finished steps of a run.

    Args:
        folder: The run's folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._digests: dict[tuple[tuple[str, int, int], ...], tuple[list[File], Digest]] = {}

    def steps(self, folders: Sequence[str]) -> Iterator[StepDone]:
        """Yield the numbers of the steps in some folders, such as "step_12", in order."""
        digest = self._open(folders).digest
        paths = Paths(digest)
        spent = step_ledger(paths).group_by("step", "validate", "part").agg(pl.col("sec").sum())
        waits = worker_ledger(paths).filter(pl.col("part") == "barrier").drop_nulls("waited_for")
        waits = waits.group_by("step", "validate", "waited_for").agg(pl.col("sec").sum())
        for row in step_table(digest).iter_rows(named=True):
            step, validate = row["step"], row["validate"]
            late = waits.filter(step=step, validate=validate).sort("sec", "waited_for").tail(1)
            parts = spent.filter(step=step, validate=validate).sort("sec", descending=True)
            yield StepDone(
                step=step,
                validate=validate,
                duration_sec=row["duration_sec"],
                requests=row["requests"],
                tokens=row["response_tokens"],
                p50_sec=row["p50_sec"],
                p99_sec=row["p99_sec"],
                straggler=late["waited_for"].item() if len(late) else None,
                straggler_sec=late["sec"].item() if len(late) else 0.0,
                ledger=dict(parts.select("part", "sec").iter_rows()),
            )

    def _open(self, folders: Sequence[str]) -> Run:
        """Return the run as if it had only these steps."""
        groups: dict[tuple[str, bool], list[File]] = {}
        for file in list_files(self._folder, folders):  # a trainer's file grows after its step was closed
            of_worker = file.place is not None and file.place.role == "worker"
            groups.setdefault((file.folder, of_worker), []).append(file)
        read: list[File] = []
        digests = []
        for group in groups.values():
            files, digest = self._digest(group)
            digests.append(_shifted(digest, sum(len(file.runs) for file in read)))
            read += files
        digest = only_newest_runs(read, concat_digests(digests))
        return Run(self._folder, read, digest, cached=False)

    def _digest(self, files: list[File]) -> tuple[list[File], Digest]:
        """Return files as read, and their digest: from memory, unless one of them changed."""
        key = tuple((file.path, file.size, file.mtime_ns) for file in files)
        found = self._digests.pop(key, None) or digest_files(self._folder, files)
        self._digests[key] = found
        while len(self._digests) > _MOST_DIGESTS:
            del self._digests[next(iter(self._digests))]
        return found


def _shifted(digest: Digest, sources: int) -> Digest:
    """Return the rows with other numbers of files and runs: they follow those of `sources` others."""
    shifted = {
        name: table.with_columns(pl.col("source") + sources) for name, table in digest.tables().items()
    }
    return Digest(**shifted)
