"""Sum up what the files of a run report as lost, and what is missing: records, ends, whole files."""

from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

import msgspec

from sglang_instrument.analysis.reading.files import (
    File,
    RunFiles,
    controls_of,
    newest_run_filter,
    newest_runs,
)
from sglang_instrument.analysis.reading.launches import at_once
from sglang_instrument.analysis.run.health import Health
from sglang_instrument.analysis.run.outside import paths_outside_steps
from sglang_instrument.analysis.run.pruned import day_of
from sglang_instrument.analysis.run.unended import unclosed_files
from sglang_instrument.schema import LOG_OPENED, LOG_VERSION, OPEN_SPANS, STEP_CLOSED


class Attendance(msgspec.Struct):
    """In which training steps of a launch workers have no file.

    Attributes:
        run_id: The launch.
        steps: The steps in which any worker has a file.
        absent: By worker with a file in one of them, those in which it has none.
    """

    run_id: str | None
    steps: list[int]
    absent: dict[int, list[int]]


def health_of(files: Sequence[File]) -> Health:
    """Return what was read of a run's files, and what was not."""
    files = RunFiles.of(files)
    lost = [file for file in files if file.place is None and file.unreadable is not None]
    lost_paths = {file.path for file in lost}
    without_place = [file.path for file in files if file.place is None and file.path not in lost_paths]
    health = Health(ignored=without_place)
    health.unreadable = {file.path: str(file.unreadable) for file in lost}
    counts, outside = newest_run_filter(files), paths_outside_steps(files)
    for file in files:
        if file.place is None:
            continue
        count_file(health, file)
        if _is_empty(file):
            health.empty.append(file.path)
        else:
            health.headerless += file.headerless
        for run_id, records in zip(file.runs, file.records, strict=True):
            if counts(file, run_id):
                health.records += records
                health.outside += records if file.path in outside else 0
            elif records:
                health.older[str(run_id)] = health.older.get(str(run_id), 0) + records
    health.runs, health.at_once = used_runs(files), at_once(files.all_launches)
    health.newer = _newer(files)
    health.open_spans = len(controls_of(files, OPEN_SPANS))
    for _, dropped, sampled_out in left_out_by_file(files):
        health.dropped += dropped
        health.sampled_out += sampled_out
    health.unclosed = _unclosed(files)
    health.missing = sorted(missing_files(files, outside))
    count_unfit(health, files)
    return health


def count_unfit(health: Health, files: Sequence[File]) -> None:
    """Count the values of files that fit no column, in place of those that were counted before."""
    health.unfit, health.unfit_examples = {}, {}
    for file in files:
        for name, of_field in file.unfit.items():
            health.unfit[name] = health.unfit.get(name, 0) + of_field.count
            health.unfit_examples.setdefault(name, f"{file.path}: {of_field.example}")


def count_file(health: Health, file: File) -> None:
    """Count a file and its lines that are no records: they count whichever run wrote the file."""
    health.files += 1
    if file.pruned_us is not None:
        day = day_of(file.pruned_us)
        health.pruned[day] = health.pruned.get(day, 0) + 1
    health.torn += file.torn
    health.foreign += file.foreign
    health.local_times += file.local_times
    if file.unreadable is not None:
        health.unreadable[file.path] = file.unreadable


def _is_empty(file: File) -> bool:
    """Return whether a file has no lines: not even the header that the writer puts into a new file."""
    lines = file.controls or any(file.records) or file.torn or file.foreign
    return not lines and file.unreadable is None


def _newer(files: Sequence[File]) -> dict[str, int]:
    """Return the files that a newer version than this one wrote, with their `log_version`."""
    versions = ((file.path, opened.extra.log_version or 0) for file, opened in controls_of(files, LOG_OPENED))
    return {path: version for path, version in versions if version > LOG_VERSION}


def missing_files(files: Sequence[File], outside: set[str]) -> Iterator[tuple[int, int]]:
    """Yield (step, worker) of training steps without a file of a worker that has one before and after.

    A worker that joined late, or died, lacks files at one end only. Each launch is checked by itself.
    """
    yield from missing_in([attendance(files, outside)])


def attendance(files: Sequence[File], outside: set[str]) -> list[Attendance]:
    """Return for each launch in which of its training steps each worker has no file."""
    newest, counts = newest_runs(files), newest_run_filter(files)
    steps_of: dict[str | None, dict[int, set[int]]] = {}
    for file in files:
        place = file.place
        if place is None or place.role != "worker" or place.step is None or place.validate:
            continue
        writers = {control.run_id for control in file.controls} | set(file.runs)
        if file.path not in outside and (not writers or any(counts(file, writer) for writer in writers)):
            workers = steps_of.setdefault(newest.get(file.folder), {})
            workers.setdefault(place.worker, set()).add(place.step)
    of_launches = []
    for run_id, workers in steps_of.items():
        steps = set().union(*workers.values())
        absent = {worker: sorted(steps - steps_written) for worker, steps_written in workers.items()}
        of_launches.append(Attendance(run_id, sorted(steps), absent))
    return of_launches


def missing_in(parts: Iterable[Sequence[Attendance]]) -> Iterator[tuple[int, int]]:
    """Yield what `missing_files` does, from the `attendance` of some steps each."""
    launches: dict[str | None, list[Attendance]] = {}
    for part in chain.from_iterable(parts):
        launches.setdefault(part.run_id, []).append(part)
    for of_launch in launches.values():
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for part in of_launch:
            for worker, absent in part.absent.items():
                attended = set(part.steps).difference(absent)
                first[worker] = min(first.get(worker, min(attended)), *attended)
                last[worker] = max(last.get(worker, max(attended)), *attended)
        for part in of_launch:
            for worker in first:
                absent = part.absent.get(worker, part.steps)
                yield from ((step, worker) for step in absent if first[worker] < step < last[worker])


def left_out_by_file(files: Sequence[File]) -> Iterator[tuple[File, int, int]]:
    """Yield how many records the writers report as dropped, and as left out by sampling: parts of sums.

    A step of an asynchronous trainer may end, go on and end again. Each `step_closed` has the counts so far,
    so the last one counts. Where the counts fall, the writer had forgotten the step and counts from 0 again.
    """
    last: dict[tuple[str, str | None], tuple[int, int]] = {}
    for file, closed in controls_of(files, STEP_CLOSED):
        key = file.path, closed.run_id
        now = closed.extra.dropped or 0, closed.extra.sampled_out or 0
        before = last.get(key, (0, 0))
        if now[0] < before[0] or now[1] < before[1]:
            before = 0, 0
        yield file, now[0] - before[0], now[1] - before[1]
        last[key] = now


def used_runs(files: Sequence[File]) -> list[str]:
    """Return the ids of runs that are the newest of some folder, oldest first."""
    used = set(newest_runs(files).values())
    return [run for run in RunFiles.of(files).begins if run in used]


def _unclosed(files: Sequence[File]) -> list[tuple[int, bool, int]]:
    places = [place for _, place in unclosed_files(files)]
    return [(place.step, place.validate, place.worker) for place in places if place.step is not None]
