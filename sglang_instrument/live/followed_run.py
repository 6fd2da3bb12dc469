"""Keep the state of the run that is followed: its counts, its live processes, its analysed steps."""

import os
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from sglang_instrument.live import snapshots
from sglang_instrument.live.analyst import Analyst, Question
from sglang_instrument.live.counting.counts import Counts, Process, StepKey, folder_of
from sglang_instrument.live.counting.endings import MOST_STEPS
from sglang_instrument.live.counting.liveness import Liveness
from sglang_instrument.live.counting.tail import Tail
from sglang_instrument.live.forecaster import Forecaster
from sglang_instrument.live.outside.gpus import GpuSampler
from sglang_instrument.live.outside.sightings import Sightings
from sglang_instrument.live.outside.views import Views
from sglang_instrument.live.problems.deaths import deaths
from sglang_instrument.live.problems.moment import Now
from sglang_instrument.live.problems.silence import idle, silences, suspects
from sglang_instrument.live.schedulers import schedulers_now
from sglang_instrument.live.state import Forecast, Problem, Snapshot, StepDone, StepNow
from sglang_instrument.live.words import duration
from sglang_instrument.plain_text import plain
from sglang_instrument.processors import processors

_ALIVE_EVERY_SEC: Final = 2.0
_OVER_SEC: Final = 3600.0  # without a line, a run whose processes cannot be asked is over
_MOST_SHOWN: Final = 60  # finished steps, beside the one in progress
_FORECAST_EVERY_SEC: Final = 2.0
_FIRST_STEPS: Final = 12  # that were finished before we came, at most
_FIRST_BYTES: Final = 256 * 2**20  # of their files, but at least one step
_NAMED: Final = 3  # unreadable files
_GPUS_SEC: Final = 2.0  # for their driver to load
_OF_SIGHTING: Final = ("kind", "role", "worker", "step", "since_us", "sentence")  # attributes of problems
_QUIET_SEC: Final = 10.0  # a run that logs is not left for another one
# Shares of the host's processors. Steps that end while the analysis rests are analysed together after it; one
# forecast of 32,000 requests takes a third of a second.
_ANALYSIS_SHARE: Final = 0.0025
_FORECAST_SHARE: Final = 0.005
_LONGEST_REST_SEC: Final = 20.0
_CLOCKS_SEC: Final = 60.0  # by how much the clock of a file server may be behind


class FollowedRun:
    """The state of the run that is followed.

    Args:
        folder: The run's folder.
        run_id: As of `Follower`.
        with_now, with_done, with_stacks: As of `Follower`.
    """

    def __init__(
        self, folder: Path, run_id: str | None, with_now: bool, with_done: bool, with_stacks: bool = False
    ) -> None:
        self.folder = folder
        self.tail = Tail(folder)
        self._wanted = run_id
        self._with_now = with_now
        self._counts = Counts(run_id or "")
        self._liveness = Liveness(folder)
        self._views = Views(with_stacks)
        self._sightings = Sightings(folder)
        self._gpus = GpuSampler(folder)
        self._analyst = Analyst(folder) if with_done else None
        self._next_alive = 0.0
        self._failed: str | None = None
        self._forecaster = Forecaster()
        self._forecast: tuple[float, StepKey, Forecast | None] = (0.0, (0, False), None)
        self._done: dict[StepKey, StepDone] = {}
        self._asked: dict[StepKey, tuple[int, list[StepKey]]] = {}  # what was known of a step then
        self._rests_until = 0.0
        self._unasked: set[StepKey] = set()  # finished, and to be asked for after the rest
        self._left_out = 0
        self._processors = processors()
        self._asked_earlier = False
        self._begun = time.monotonic()
        self._run_id: str | None = None

    def read(self, now: float) -> bool:
        """Read what was added; return whether there is more."""
        wall = time.time()
        for file, piece in self.tail.read():
            # What was there before us is as old as its file; everything else was just written.
            stale_sec = max(0.0, wall - file.mtime) if file.was_there and not file.reads else 0.0
            file.reads += 1
            self._counts.take(file, piece, now, stale_sec)
        if self._counts.run_id != self._run_id:
            self._begin_run()
        if self._with_now and now >= self._next_alive:
            self._next_alive = now + _ALIVE_EVERY_SEC
            self.look_outside(now)
        if not self.tail.more:
            self._take_done(now)
            self._finish_steps(now)
            is_running = bool(self._counts.processes) and self._ended(now) is None
            self._gpus.want(self._counts.run_id, is_running)
        return self.tail.more

    def look_outside(self, now: float) -> bool:
        """Look at the processes from outside: which are alive, and what those do that are silent.

        Returns:
            Whether any is silent: a second look tells more of it.
        """
        self._liveness.look(self._counts.members)
        moment = Now(self._counts, now, wall_us(), self._liveness.alive, self._ended(now) is not None)
        pids = self._liveness.pids

        def known(processes: Iterable[Process]) -> dict[str, int]:
            return {stem: pids[stem] for process in processes for stem in process.stems if stem in pids}

        silent = known(process for _, process, _ in suspects(moment))
        self._views.look(silent, known(process for _, process in idle(moment)))
        return bool(silent)

    def snapshot(self, now: float) -> Snapshot:
        """Return what is known."""
        self._take_done(now)
        done, failures = tuple(self._done.values()), self._own_problems()
        if not self._with_now:
            return Snapshot(str(self.folder), self._counts.run_id, wall_us(), done=done, problems=failures)
        done = done[-_MOST_SHOWN:]
        counts, ended, at_us = self._counts, self._ended(now), wall_us()
        over_sec = 0.0 if ended is None else self._silent_sec(now)  # ages stop with the last line
        ended_us = None if ended is None else at_us - round(over_sec * 1e6)
        moment = Now(
            counts,
            now - over_sec,
            at_us if ended_us is None else ended_us,
            self._liveness.alive,
            ended is not None,
            self._liveness.killed,
            self._views.of,
        )
        step = counts.newest()
        self._write_sightings(moment, step)
        in_progress = snapshots.step_now(moment, step, done)
        if in_progress is not None and ended is None and not snapshots.is_blocked(moment, step):
            in_progress = replace(in_progress, forecast=self._forecast_of(moment, step, in_progress))
        problems = (*snapshots.problems_now(moment, step, in_progress), *failures)
        if in_progress is not None and _stands_still(problems):
            in_progress = replace(in_progress, forecast=_without_end(in_progress.forecast))
        return Snapshot(
            logs=str(self.folder),
            run_id=counts.run_id,
            at_us=at_us,
            step=in_progress,
            done=done,
            problems=problems,
            workers=snapshots.workers_now(moment, step, problems),
            totals=snapshots.totals_of(moment),
            ended=ended,
            ended_us=ended_us,
            waiting=self._nothing_yet(),
            schedulers=tuple(schedulers_now(moment)),
            gpus=self._gpus.newest(),
            behind_sec=self.tail.behind_sec(),
            catching_up=self.tail.more,
        )

    def _write_sightings(self, moment: Now, step: StepKey | None) -> None:
        """Write what the log cannot hold: processes that are gone, or live and say nothing."""
        seen = [*deaths(moment, step), *silences(moment, step)]
        named = {"run_id": self._counts.run_id, "seen_us": moment.at_us}
        self._sightings.write(
            [
                {**named, **{name: getattr(problem, name) for name in _OF_SIGHTING}}
                for problem in seen
                if problem.worker is not None and problem.step is not None
            ],
            moment.now,
        )

    def _forecast_of(self, now: Now, step: StepKey | None, in_progress: StepNow) -> Forecast | None:
        """Return the forecast of the step in progress, made anew now and then."""
        again_at, of_step, known = self._forecast
        if step is None or now.now < again_at:  # steps shorter than the rest go without a forecast
            return known if of_step == step else None
        begun = time.thread_time()
        try:
            known = self._forecaster.forecast(now, step, in_progress.age_sec, in_progress.requests_expected)
        except Exception as error:  # records may be odd: without a forecast, all the rest is still known
            known, self._failed = None, f"no forecast: {error!r}"
        rest = (time.thread_time() - begun) / (_FORECAST_SHARE * self._processors)
        self._forecast = (now.now + max(_FORECAST_EVERY_SEC, rest), step, known)
        return known

    def is_quiet(self, now: float) -> bool:
        """Return whether nothing was logged for a while."""
        return self._silent_sec(now) > _QUIET_SEC

    def wait_for_done(self) -> None:
        """Wait until the finished steps are analysed, also those that may go on."""
        self._finish_steps(time.monotonic(), at_once=True)
        if self._analyst is not None:
            self._analyst.wait()
        self._gpus.wait(_GPUS_SEC)
        self._forecast = (0.0, (0, False), None)  # it was made before that was known

    def close(self) -> None:
        """End what was started."""
        self._gpus.close()
        if self._analyst is not None:
            self._analyst.close()

    def _nothing_yet(self) -> str | None:
        if self._wanted is None:
            return None if self._counts.processes else f"{self.folder}: no records yet"
        return None if self._counts.run_id else f"{self.folder}: no records of run {self._wanted} yet"

    def _silent_sec(self, now: float) -> float:
        return now - max(
            (process.last_at for process in self._counts.processes.values()), default=self._begun
        )

    def _ended(self, now: float) -> str | None:
        """Return why no more comes; None while the run goes on."""
        alive = {
            name: is_alive for name, is_alive in self._liveness.alive.items() if name.startswith("worker_")
        } or self._liveness.alive
        if True in alive.values():
            return None
        if alive and None not in alive.values():
            return "all processes of the run have ended"
        processes = self._counts.processes.values()
        if processes and all(process.log_closed for process in processes):
            return "all processes have closed their logs"
        if processes and self._silent_sec(now) > _OVER_SEC:
            return f"no process has written anything for {duration(_OVER_SEC)}"
        return None

    def _own_problems(self) -> tuple[Problem, ...]:
        """Return what the follower cannot do."""
        failures = list(self.tail.failures.items())
        sentences = [f"{path}: {why}" for path, why in failures[:_NAMED]]
        if len(failures) > _NAMED:
            sentences.append(f"{len(failures) - _NAMED} more files cannot be read")
        sentences += list(self._analyst.failures.values())[-_NAMED:] if self._analyst is not None else []
        sentences += [self._failed] if self._failed is not None else []
        if self._left_out:
            sentences.append(
                f"{self._left_out} finished steps are not analysed: that takes longer than they did"
            )
        return tuple(Problem("follower", wall_us(), None, None, plain(sentence)) for sentence in sentences)

    def _begin_run(self) -> None:
        """Forget the steps that a run which began again will do again."""
        first = min((step for step, _ in self._counts.steps), default=0)
        if self._run_id is not None:
            self._done = {key: step for key, step in self._done.items() if key[0] < first}
            self._asked = {key: lines for key, lines in self._asked.items() if key[0] < first}
            self._forecaster = Forecaster()
        self._run_id = self._counts.run_id

    def _finish_steps(self, now: float, at_once: bool = False) -> None:
        """Learn from steps that ended, and have them analysed: again once they went on, or the next began."""
        order = self._counts.endings.in_order()
        if order and not self._asked_earlier:
            self._asked_earlier = True
            self._ask_for_earlier(order)
        is_due = at_once or (now >= self._rests_until and not (self._analyst and self._analyst.is_busy))
        due: dict[StepKey, list[StepKey]] = {}
        for key, lines in self._counts.endings.finished(now, at_once):
            self._learn(key)
            next_place = order.index(key) + 1
            following = order[next_place : next_place + 1] if self._with_now else []
            if is_due and self._asked.get(key) != (lines, following):
                self._asked[key] = (lines, following)
                due[key] = following
            elif key not in self._asked:
                self._unasked.add(key)
        self._ask_for({folder_of(key): list(map(folder_of, following)) for key, following in due.items()})
        self._unasked -= self._asked.keys()
        self._left_out += len(self._unasked - set(order))
        self._unasked &= set(order)
        self._asked = {key: lines for key, lines in self._asked.items() if key in order}

    def _learn(self, step: StepKey) -> None:
        """Let the forecast learn from a step that ended."""
        if self._with_now and step in self._counts.steps:
            try:
                self._forecaster.saw_end(self._counts, step)
            except Exception as error:
                self._failed = f"no forecast learns from step {step[0]}: {error!r}"

    def _ask_for(self, steps: dict[str, list[str]]) -> None:
        if self._analyst is not None and steps:
            self._analyst.ask(Question(steps, self._counts.run_id if self._wanted else None))

    def _ask_for_earlier(self, order: list[StepKey]) -> None:
        # A follower that is there for a run from its begin has no interest in older files.
        since = 0.0 if self._with_now or self._wanted is None else time.time() - _CLOCKS_SEC
        known = [folder_of(key) for key in order]
        names = _earlier_steps(self.folder, set(known), since)
        following = zip(names, [*names[1:], known[0]], strict=False)
        self._ask_for({name: [after] if self._with_now else [] for name, after in following})

    def _take_done(self, now: float) -> None:
        """Take the numbers of steps; those of steps that ended before we came may cost what they will."""
        asked = {folder_of(key) for key in self._asked}
        for answer in self._analyst.answers() if self._analyst is not None else ():
            if answer.step is not None:
                self._done[answer.step.step, answer.step.validate] = answer.step
            if answer.folder in asked:
                rest_sec = max(self._rests_until - now, 0.0) + answer.cpu_sec / (
                    _ANALYSIS_SHARE * self._processors
                )
                self._rests_until = now + min(rest_sec, _LONGEST_REST_SEC)
        self._done = {key: self._done[key] for key in sorted(self._done)[-MOST_STEPS:]}


def _stands_still(problems: Sequence[Problem]) -> bool:
    return any(problem.kind in ("hang", "death") for problem in problems)


def _without_end(forecast: Forecast | None) -> Forecast | None:
    """Return the part of a forecast that holds where something stands still: which requests will not end."""
    if forecast is None or not forecast.will_not_end:
        return None
    return replace(forecast, decides=None, decides_share=0.0)


def _earlier_steps(folder: Path, known: set[str], since: float) -> list[str]:
    """Return the folders of the last steps that are not `known`, as far as they are read quickly."""
    steps = [
        (int(number), name)
        for name in os.listdir(folder)  # noqa: PTH208 - only the names
        if (number := name.removeprefix("step_")) != name and number.isdecimal()
    ]
    earlier = [name for _, name in sorted(steps) if name not in known]
    chosen: list[str] = []
    left = _FIRST_BYTES
    for name in reversed(earlier[-_FIRST_STEPS:]):
        with os.scandir(folder / name) as entries:
            stats = [entry.stat() for entry in entries]
        left -= sum(stat.st_size for stat in stats)
        if left < 0 and chosen:
            break
        if max((stat.st_mtime for stat in stats), default=0.0) >= since:
            chosen.append(name)
    return chosen[::-1]


def wall_us() -> int:
    """Return now, Unix epoch in microseconds."""
    return time.time_ns() // 1000
