"""Choose the steps whose records `prune` deletes: not the newest or slowest, none that a finding names."""

import os
import stat
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from sglang_instrument.analysis.answers.steps import STEP, step_table
from sglang_instrument.analysis.digests.digest import Digest
from sglang_instrument.analysis.executors.executor import Progress
from sglang_instrument.analysis.executors.local import LocalExecutor
from sglang_instrument.analysis.reading.files import File, RunFiles, ended_paths, newest_runs
from sglang_instrument.analysis.run.digest_of_run import only_newest_runs, read_everything
from sglang_instrument.analysis.run.experiments import find_run
from sglang_instrument.analysis.run.opening import Run
from sglang_instrument.analysis.run.outside import paths_outside_steps
from sglang_instrument.analysis.store.earlier_datasets import is_earlier_dataset
from sglang_instrument.analysis.store.parts import is_dataset
from sglang_instrument.analysis.verdict.verdict import findings_of
from sglang_instrument.errors import LogError
from sglang_instrument.schema import LOG_OPENED

#: Why a step keeps its records.
NEWEST: Final = "newest"
SLOWEST: Final = "slowest"
NAMED: Final = "named by a finding"
IN_USE: Final = "may still be written to"

_QUIET_SEC: Final = 600.0  # files that changed later are left alone
_OPEN_STEPS: Final = 3  # a writer keeps the file of a step open until it saw two newer steps

Step = tuple[int, bool]  # its number, and whether it is validation


@dataclass(frozen=True)
class Plan:
    """What `prune` would do.

    Attributes:
        run: The run.
        whole: The digest of all runs in its folder.
        keep: Why each step that stays does: NEWEST, SLOWEST, NAMED or IN_USE.
        drop: The files to delete.
        left: Files of steps to drop that stay, each with the reason.
        linked: How many files to delete have a second name on the disk, which keeps their bytes.
        freed: The bytes of the other ones.
    """

    run: Run
    whole: Digest
    keep: dict[Step, str]
    drop: list[File]
    left: dict[str, str]
    linked: int
    freed: int

    @property
    def steps(self) -> list[Step]:
        """The steps whose records go, in order."""
        return sorted({_step_of(file) for file in self.drop})

    @property
    def kept_bytes(self) -> int:
        """The bytes of the logs that stay."""
        gone = {file.path for file in self.drop}
        return sum(file.size for file in self.run.files if file.pruned_us is None and file.path not in gone)

    def count(self, why: str) -> int:
        """Return how many steps stay for a reason."""
        return Counter(self.keep.values())[why]


def plan_prune(path: Path, keep_steps: int, keep_slowest: int, progress: Progress | None = None) -> Plan:
    """Return what would go of a run's folder. Nothing is deleted here.

    Args:
        path: The run's folder.
        keep_steps: How many of the newest steps keep their records, and how many of the newest validations.
        keep_slowest: The same of the slowest.
        progress: Called with the number of files read so far and the number of files to read.

    Raises:
        LogError: There is no such run, or it is a dataset.
    """
    folder = find_run(path)
    if is_dataset(folder) or is_earlier_dataset(folder):
        raise LogError(f"{folder} is a dataset, without a log that could be pruned")
    executor = LocalExecutor(folder)
    files, whole = read_everything(executor, progress)
    known = RunFiles(files)
    run = Run(executor, known, only_newest_runs(known, whole))
    if not any(any(file.records) for file in files):
        raise LogError(f"{folder}: no records yet")
    steps = _files_by_step(files)
    keep = _worth_keeping(run, steps, keep_steps, keep_slowest)
    keep.update({step: IN_USE for step in _in_use(run, steps) if step not in keep})
    drop, left = [], {}
    for file in (file for step, files in steps.items() if step not in keep for file in files):
        why = _why_not(folder, file)
        if why:
            left[file.path] = why
        else:
            drop.append(file)
    sizes = [_lone_bytes(folder, file) for file in drop]
    return Plan(run, whole, keep, drop, left, sizes.count(None), sum(filter(None, sizes)))


def _files_by_step(files: Sequence[File]) -> dict[Step, list[File]]:
    """Return the logs that are there of each step; records that belong to no step are in none."""
    outside = paths_outside_steps(files)
    steps: dict[Step, list[File]] = {}
    for file in files:
        place = file.place
        if place is None or place.step is None or file.pruned_us is not None:
            continue
        if file.path not in outside:
            steps.setdefault((place.step, place.validate), []).append(file)
    return steps


def _worth_keeping(
    run: Run, steps: Mapping[Step, list[File]], keep_steps: int, keep_slowest: int
) -> dict[Step, str]:
    unknown = _of_unknown_launches(run.files)
    replaced = _replaced(run.files) - unknown
    rows = step_table(run.digest).select(*STEP, "duration_sec").iter_rows()
    took = {(step, validate): sec or 0.0 for step, validate, sec in rows}
    named = _named(run)
    keep = {}
    for kind in (False, True):
        of_kind = sorted(step for step in steps if step[1] == kind and step not in replaced)
        slowest = sorted((step for step in of_kind if step in took), key=lambda step: (-took[step], step))
        certain = [step for step in of_kind if step not in unknown]
        keep.update(dict.fromkeys(named & {*of_kind}, NAMED))
        keep.update(dict.fromkeys(slowest[:keep_slowest], SLOWEST))
        keep.update(dict.fromkeys([*of_kind[-keep_steps:], *certain[-keep_steps:]], NEWEST))
    return keep


def _replaced(files: Sequence[File]) -> set[Step]:
    """Return the steps that a later launch replaced, also those that it has not reached yet."""
    newest = newest_runs(files)
    with_header = {_step_of(file) for file in files if _has_header(file) and file.folder not in newest}
    return with_header - {_step_of(file) for file in files if file.folder in newest}


def _of_unknown_launches(files: Sequence[File]) -> set[Step]:
    """Return the steps of files that lack their first line: a later launch may have replaced them."""
    return {_step_of(file) for file in files if file.size and not _has_header(file)}


def _has_header(file: File) -> bool:
    return any(control.event == LOG_OPENED for control in file.controls)


def _named(run: Run) -> set[Step]:
    """Return the steps that findings name."""
    return {(finding.step, finding.validate) for finding in findings_of(run) if finding.step is not None}


def _in_use(run: Run, steps: Mapping[Step, list[File]]) -> set[Step]:
    """Return the steps to whose files a process may still write."""
    latest_ns = (time.time() - _QUIET_SEC) * 1e9
    used = {step for step, files in steps.items() if any(file.mtime_ns > latest_ns for file in files)}
    if run.is_over:
        return used
    ended = ended_paths(run.files)
    used |= {step for step, files in steps.items() if any(file.path not in ended for file in files)}
    for kind in (False, True):
        used.update(sorted(step for step in steps if step[1] == kind)[-_OPEN_STEPS:])
    return used


def _why_not(folder: Path, file: File) -> str:
    """Return why a file of a step to drop stays; "" if it goes."""
    if file.unreadable is not None:
        return f"it cannot be read: {file.unreadable}"
    if (folder / file.folder).is_symlink():
        return f"{file.folder} is a link to another folder"
    mode = os.lstat(folder / file.path).st_mode if os.path.lexists(folder / file.path) else None
    if mode is None:
        return "it is gone"
    return "" if stat.S_ISREG(mode) else "it is no regular file"


def _lone_bytes(folder: Path, file: File) -> int | None:
    """Return the bytes that deleting a file frees; None if it has a second name."""
    try:
        about = os.lstat(folder / file.path)
    except OSError:
        return 0
    return about.st_size if about.st_nlink == 1 else None


def _step_of(file: File) -> Step:
    place = file.place
    return (-1, False) if place is None or place.step is None else (place.step, place.validate)
