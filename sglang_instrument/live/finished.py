"""Compute the numbers of finished steps, as `summary` has them, in the process that `Analyst` starts.

It keeps the digests of the last steps, so that each file is read once. It has the priority of the process
that asks: that of `watch --once`, for which a person waits, is higher than a follower's.
"""

import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Final

import msgspec
import polars as pl

from sglang_instrument.analysis.answers.steps import step_table
from sglang_instrument.analysis.digests.digest import Digest, concat_digests
from sglang_instrument.analysis.digests.file_sources import only_files
from sglang_instrument.analysis.executors.local import LocalExecutor, list_files
from sglang_instrument.analysis.outlook.hours_left import TrainingLeft
from sglang_instrument.analysis.reading.files import (
    File,
    RunFiles,
    ended_paths,
    newest_run_filter,
    only_run,
)
from sglang_instrument.analysis.run.digest_of_run import digest_files, only_newest_runs
from sglang_instrument.analysis.run.opening import Run
from sglang_instrument.analysis.run.outside import paths_outside_steps
from sglang_instrument.live.analyst import Answer, Question
from sglang_instrument.live.counting.counts import folder_of
from sglang_instrument.live.counting.endings import OTHER_ROLES
from sglang_instrument.live.scalars import Ledgers, step_done
from sglang_instrument.live.state import StepDone

_TOGETHER_BYTES: Final = 8 * 2**20  # of steps that are analysed at once: for each alone, 100 ms are added
_SMALL_BYTES: Final = 2**20  # of a folder that is read again rather than kept, together with others
_SMALL: Final = ("", False)  # the group of such folders
_MOST_DIGESTS: Final = 6  # of the workers' files of a step, or of the others
_ENGINE: Final = "engine"
_MOST_ENGINE_BYTES: Final = 64 * 2**20  # of the engine's own logs, of all steps; they take 2 s to read


def main(folder: str) -> None:
    """Answer each line of stdin, a `Question`, by a line for each of its steps."""
    finished = Finished(Path(folder))
    for line in sys.stdin.buffer:
        for answer in finished.answers(msgspec.json.decode(line, type=Question)):
            sys.stdout.buffer.write(msgspec.json.encode(answer) + b"\n")
            sys.stdout.buffer.flush()


class Finished:
    """The last finished steps of a run.

    Args:
        folder: The run's folder.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._left = TrainingLeft()
        self._digests: dict[tuple[tuple[str, int, int], ...], tuple[list[File], Digest]] = {}

    def answers(self, asked: Question) -> Iterator[Answer]:
        """Yield the numbers of each step, in order; small steps are analysed together."""
        for steps in self._together(asked.steps):
            begun, failed, done = time.process_time(), None, {}
            try:
                done = self._steps(steps, asked.run_id)
            except Exception as error:  # a step that cannot be read must not cost the others
                if len(steps) > 1:
                    for folder, following in steps.items():
                        yield from self.answers(Question({folder: following}, asked.run_id))
                    continue
                failed = f"{next(iter(steps))} cannot be analysed: {error!r}"
            cpu_sec = (time.process_time() - begun) / len(steps)
            yield from (Answer(folder, cpu_sec, done.get(folder), failed) for folder in steps)

    def _together(self, steps: Mapping[str, list[str]]) -> Iterator[dict[str, list[str]]]:
        """Yield the steps in groups, each of some megabytes or of one step."""
        group: dict[str, list[str]] = {}
        left = _TOGETHER_BYTES
        for folder, following in steps.items():
            size = sum(file.size for file in list_files(self._folder, [folder]))
            if group and size > left:
                yield group
                group, left = {}, _TOGETHER_BYTES
            group[folder] = following
            left -= size
        if group:
            yield group

    def _steps(self, steps: Mapping[str, list[str]], run_id: str | None) -> dict[str, StepDone]:
        """Return the numbers of those steps that are finished, and whose records belong to a step."""
        run = self._open(list(dict.fromkeys([*steps, *chain(*steps.values())])), run_id)
        rows = {folder_of((row["step"], row["validate"])): row for row in step_table(run.digest).to_dicts()}
        ledgers = Ledgers(run)
        done = {}
        for folder in steps:
            files = [file for file in run.files if file.folder == folder]
            outside = paths_outside_steps(files)
            files = [file for file in files if file.path not in outside]
            if folder in rows and _is_finished(files):
                step = step_done(ledgers, rows[folder], files)
                left = self._left.scalars(run, rows[folder])
                done[folder] = replace(step, scalars={**step.scalars, **left})
        return done

    def _open(self, folders: Sequence[str], run_id: str | None) -> Run:
        """Return the run as if it had only these steps."""
        engine = list_files(self._folder, [_ENGINE])
        if sum(file.size for file in engine) > _MOST_ENGINE_BYTES:
            engine = []
        files = [*list_files(self._folder, folders), *engine]
        sizes: Counter[str] = Counter()
        for file in files:
            sizes[file.folder] += file.size
        groups: dict[tuple[str, bool], list[File]] = {}
        for file in files:  # a trainer's file grows after its step
            of_worker = file.place is not None and file.place.role == "worker"
            key = (file.folder, of_worker) if sizes[file.folder] > _SMALL_BYTES else _SMALL
            groups.setdefault(key, []).append(file)
        read: list[File] = []
        digests = []
        for group in groups.values():
            of_group, digest = self._digest(group)
            digests.append(_shifted(digest, sum(len(file.runs) for file in read)))
            read += of_group
        digest = concat_digests(digests)
        if run_id is not None:  # a server that was started by hand has a run id of its own
            run_files = only_run([file for file in read if file.folder != _ENGINE], run_id)
            run_files += [file for file in read if file.folder == _ENGINE]
            read, digest = run_files, only_files(digest, read, run_files)
        known = RunFiles(read)
        return Run(LocalExecutor(self._folder), known, only_newest_runs(known, digest), cached=False)

    def _digest(self, files: list[File]) -> tuple[list[File], Digest]:
        """Return files as read, and their digest: from memory, unless one of them changed.

        No other processes read them, because this one runs beside a training.
        """
        key = tuple((file.path, file.size, file.mtime_ns) for file in files)
        digested = self._digests.pop(key, None) or digest_files(LocalExecutor(self._folder, 1), files)
        self._digests[key] = digested
        while len(self._digests) > _MOST_DIGESTS:
            del self._digests[next(iter(self._digests))]
        return digested


def _is_finished(files: Sequence[File]) -> bool:
    """Return whether all workers of the newest run closed a step; other programs' files are complete."""
    roles = {file.path: file.place.role for file in files if file.place is not None}
    workers = [file for file in files if roles.get(file.path) == "worker"]
    workers = workers or [file for file in files if roles.get(file.path) not in {None, *OTHER_ROLES}]
    counts, ended = newest_run_filter(files), ended_paths(files)
    wrote = [file for file in workers if any(counts(file, control.run_id) for control in file.controls)]
    return bool(workers) and all(file.path in ended for file in wrote)


def _shifted(digest: Digest, sources: int) -> Digest:
    """Return the rows with other numbers of files and runs: they follow those of `sources` others."""
    shifted = {
        name: table.with_columns(pl.col("source") + sources) for name, table in digest.tables().items()
    }
    return Digest(**shifted)
