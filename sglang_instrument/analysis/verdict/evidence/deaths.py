"""Find the worker that died in a step that never ended, and tell its death from chance.

A worker that has finished its requests waits for the others and has a good reason to log nothing. A worker
that has not may be silent between two replies, longer so with few requests left. So its silence, which lasts
until the others' last record, is compared with such pauses in the rest of the run. Two other signs need no
statistics: every live worker reports a step that has been open for long, at the same ages, so a worker that
did not report is dead; and if all others had finished their requests, they waited for the one that had not.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import polars as pl

from sglang_instrument.analysis.digests.digest import Digest
from sglang_instrument.analysis.ledger.ledger import STEP, STEP_OF_WORKER
from sglang_instrument.analysis.reading.files import File, controls_of, ended_paths
from sglang_instrument.analysis.reading.last_open import UNENDED
from sglang_instrument.analysis.run.clocks import clock_table
from sglang_instrument.analysis.verdict.evidence.chance import Draws
from sglang_instrument.analysis.verdict.evidence.hangs import open_step_age_sec, waits_at_barrier
from sglang_instrument.schema import LOG_OPENED, OPEN_SPANS, STEP_CLOSED

_CHANCE: Final = 0.01  # largest allowed probability that a live worker is silent for this long
_SLACK_SEC: Final = 10.0  # watchdogs check once a second, and workers begin a step at different times
_FEWEST: Final = 8  # with fewer pauses, their lengths cannot be estimated
_DOUBLED: Final = 1.5  # reports come at each doubling of the age

_Step = tuple[int, bool]


@dataclass(frozen=True)
class UnfinishedStep:
    """A step that never ended, and the worker that died in it, if its silence shows that.

    Attributes:
        step, validate: The step.
        worker: The first worker to stop logging, silent for longer than a live worker would be; in a
            step of one worker, that one. None if there is none: all ended together, or the silent ones had
            finished.
        ahead_sec: How long other workers logged after it; None if there are no others.
        is_alone: Whether all others had finished their requests and waited for it.
        done: How many requests each worker of the step had completed.
        last_us: The time of each worker's last record, on the clocks as barriers align them.
    """

    step: int
    validate: bool
    worker: int | None
    ahead_sec: float | None
    is_alone: bool
    done: dict[int, int]
    last_us: dict[int, int]


def unfinished_steps(digest: Digest, files: Sequence[File]) -> list[UnfinishedStep]:
    """Return the steps that workers never closed and in which they wrote their last records.

    If a worker closed a step, so did the others, unless one of them died: the end of a file may be torn. And
    where workers meet at barriers, those that closed a step had met all others, so that nobody died in it.
    A barrier that ended with an exception is no such meeting: `digest.barriers` lacks it.
    """
    digest = digest.of_workers()
    closed = {key[0] for file, _ in controls_of(files, STEP_CLOSED) if (key := _key(file)) is not None}
    met = digest.barriers.select(STEP).unique()
    done = closed & set(met.iter_rows())
    judged = [_judge(digest, end) for end in _ends(digest, files) if end.step not in done]
    return [
        unfinished
        for unfinished in judged
        if unfinished.worker is not None or (unfinished.step, unfinished.validate) not in closed
    ]


@dataclass(frozen=True)
class _End:
    """A step that was the last of some workers.

    Attributes:
        step: The step.
        last_us: The time of each worker's last record in it.
        progress: How far each worker got.
        at_work: The workers that ended here with requests left; if some of them missed a report, only those.
        missed: The workers that did not report the step as open when others did.
    """

    step: _Step
    last_us: dict[int, int]
    progress: "_Progress"
    at_work: list[int]
    missed: set[int]


def _ends(digest: Digest, files: Sequence[File]) -> Iterator[_End]:
    unclosed = _unclosed(files)
    if not unclosed:
        return
    signs = _last_signs(digest, files)
    newest: dict[int, int] = {}
    for (_, worker), sign_us in signs.items():
        newest[worker] = max(newest.get(worker, sign_us), sign_us)
    waiting = set(_at_barriers(files))
    for step in sorted({step for step, _ in unclosed}):
        last = {worker: sign_us for (of_step, worker), sign_us in signs.items() if of_step == step}
        ended_here = [
            writer for writer in last if (step, writer) in unclosed and last[writer] == newest[writer]
        ]
        if ended_here:
            progress, missed = _progress(digest, step, last), _missed_report(digest, files, step, last)
            at_work = [
                writer
                for writer in ended_here
                if progress.is_at_work(writer) and (step, writer) not in waiting
            ]
            at_work = [writer for writer in at_work if writer in missed] or at_work
            yield _End(step, last, progress, at_work, missed)


def _judge(digest: Digest, end: _End) -> UnfinishedStep:
    """Judge the silence of the worker at work whose last record is the earliest."""
    last, progress = end.last_us, end.progress
    first = min(end.at_work, key=lambda worker: (last[worker], worker), default=None)
    others = [sign_us for worker, sign_us in last.items() if worker != first]
    ahead = (max(others) - last[first]) / 1e6 if first is not None and others else None
    is_alone = len(end.at_work) == 1 and progress.is_even and len(progress.done) > 1
    is_told = first in end.missed or is_alone
    if first is not None and ahead is not None and not (is_told or _is_too_long(digest, end, first, ahead)):
        first = None
    return UnfinishedStep(*end.step, first, ahead, is_alone, progress.done, last)


def _is_too_long(digest: Digest, end: _End, worker: int, silent_sec: float) -> bool:
    """Return whether a live worker is hardly ever silent for this long."""
    left = end.progress.begun[worker] - end.progress.done[worker]
    return _chance(_pauses(digest, left), silent_sec) * len(end.at_work) <= _CHANCE


def _chance(pauses: pl.Series, silent_sec: float) -> float:
    """Return the probability that, at a random time, a pause goes on for this long."""
    if silent_sec <= 0 or len(pauses) < _FEWEST:
        return 1.0
    mean_sec = float(pauses.sum()) / len(pauses)
    # A random time falls into a pause with a probability proportional to the pause's length.
    return Draws(pauses).chance_to_reach(silent_sec, fewest=_FEWEST) * max(1.0, silent_sec / mean_sec)


def _missed_report(digest: Digest, files: Sequence[File], step: _Step, last: dict[int, int]) -> set[int]:
    """Return the workers that did not report the step as open at an age at which another worker did."""
    ages: dict[int, set[float]] = {worker: {0.0} for worker in last}
    for file, control in controls_of(files, OPEN_SPANS):
        key = _key(file)
        if key is not None and key[0] == step and key[1] in ages:
            ages[key[1]].add(open_step_age_sec(control))
    here = digest.steps.filter(step=step[0], validate=step[1])
    begun = dict(here.group_by("worker").agg(pl.col("start_us").min()).iter_rows())
    ahead_us, end = _clocks(digest), max(last.values())
    lasted = {worker: (end - begun[worker] + ahead_us.get(worker, 0)) / 1e6 for worker in last}
    of_any = set().union(*ages.values())
    return {
        worker
        for worker, of_worker in ages.items()
        if any(max(of_worker) < age / _DOUBLED and lasted[worker] > age + _SLACK_SEC for age in of_any)
    }


def _pauses(digest: Digest, left: int) -> pl.Series:
    """Return the seconds between two records of a worker while it had about `left` requests left."""
    turns = digest.turns.select(*STEP_OF_WORKER, "end_us", done=pl.lit(0))
    ended = digest.requests.filter(pl.col("error").ne_missing(UNENDED))
    requests = ended.select(*STEP_OF_WORKER, "end_us", done=pl.lit(1))
    signs = pl.concat([turns, requests]).sort(*STEP_OF_WORKER, "end_us")
    total = pl.col("done").sum().over(STEP_OF_WORKER)
    pauses = signs.with_columns(
        left=total - pl.col("done").cum_sum().over(STEP_OF_WORKER),
        pause_sec=(pl.col("end_us").shift(-1).over(STEP_OF_WORKER) - pl.col("end_us")) / 1e6,
    ).filter(pl.col("pause_sec") > 0)
    similar = pauses.filter(pl.col("left").is_between((left + 1) // 2, max(left, 1)))["pause_sec"]
    return similar if len(similar) >= _FEWEST else pauses["pause_sec"]


@dataclass(frozen=True)
class _Progress:
    """How far the workers of a step got.

    Attributes:
        begun, done: Their numbers of requests, as far as known.
        is_even: Whether all workers had the same number of requests in all other steps.
    """

    begun: dict[int, int]
    done: dict[int, int]
    is_even: bool

    def is_at_work(self, worker: int) -> bool:
        return self.begun[worker] > self.done[worker] or not self.done[worker]


def _progress(digest: Digest, step: _Step, workers: dict[int, int]) -> _Progress:
    """Count requests; the log lacks those without a first reply, so other steps tell how many there are."""
    here = (pl.col("step") == step[0]) & (pl.col("validate") == step[1])
    ids = pl.concat(
        [table.select(*STEP_OF_WORKER, "request_id") for table in (digest.turns, digest.requests)]
    )
    known = _count(ids.filter(here).unique())
    ended = digest.requests.filter(pl.col("error").ne_missing(UNENDED))
    done = _count(ended.filter(here))
    others = digest.requests.filter(~here & (pl.col("validate") == step[1])).group_by(STEP_OF_WORKER).len()
    usual = others.group_by("worker").agg(least=pl.col("len").min(), most=pl.col("len").max())
    least = dict(usual.select("worker", "least").iter_rows())
    return _Progress(
        {worker: max(known.get(worker, 0), least.get(worker, 0)) for worker in workers},
        {worker: done.get(worker, 0) for worker in sorted(workers)},
        least.keys() >= workers.keys() and bool((usual["least"] == usual["most"]).all()),
    )


def _count(rows: pl.DataFrame) -> dict[int, int]:
    return dict(rows.group_by("worker").len().iter_rows())


def _unclosed(files: Sequence[File]) -> set[tuple[_Step, int]]:
    """Return the steps that workers opened but did not close, and whose logs they did not close."""
    whole = ended_paths(files)
    opened = (file for file, _ in controls_of(files, LOG_OPENED) if file.path not in whole)
    return {key for file in opened if (key := _key(file)) is not None}


def _key(file: File) -> tuple[_Step, int] | None:
    place = file.place
    if place is None or place.role != "worker" or place.step is None or place.worker is None:
        return None
    return (place.step, place.validate), place.worker


def _at_barriers(files: Sequence[File]) -> Iterator[tuple[_Step, int]]:
    """Yield the workers that were reported as waiting at a barrier, with their step."""
    for file, control in controls_of(files, OPEN_SPANS):
        key = _key(file)
        if key is not None and waits_at_barrier(control):
            yield key


def _last_signs(digest: Digest, files: Sequence[File]) -> dict[tuple[_Step, int], int]:
    """Return when each worker last ended a span, or reported open spans, in each step."""
    ahead_us = _clocks(digest)
    signs: dict[tuple[_Step, int], int] = {}
    for row in digest.steps.drop_nulls("worker").iter_rows(named=True):
        key = ((row["step"], row["validate"]), row["worker"])
        end = row["start_us"] + round((row["duration_sec"] or 0.0) * 1e6)
        signs[key] = max(signs.get(key, 0), end - ahead_us.get(row["worker"], 0))
    for file, control in controls_of(files, OPEN_SPANS):
        place = _key(file)
        if place in signs:
            signs[place] = max(signs[place], control.time_us - ahead_us.get(place[1], 0))
    return signs


def _clocks(digest: Digest) -> dict[int, int]:
    """Return by how many microseconds the clock of each worker is ahead, where barriers tell."""
    offsets = clock_table(digest).select("worker", "offset_sec").drop_nulls()
    return {worker: round(offset * 1e6) for worker, offset in offsets.iter_rows()}
