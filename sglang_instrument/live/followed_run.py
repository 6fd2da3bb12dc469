"""Keep the state of one run that is followed: what was read, who is alive, which steps were analysed."""

import os
import time
from dataclasses import replace
from pathlib import Path
from typing import Final

from sglang_instrument.live import snapshots
from sglang_instrument.live.analyst import Analyst
from sglang_instrument.live.counting.counts import Counts, StepKey, folder_of
from sglang_instrument.live.counting.liveness import Liveness
from sglang_instrument.live.counting.tail import Tail
from sglang_instrument.live.forecaster import Forecaster
from sglang_instrument.live.problems import Now
from sglang_instrument.live.state import Forecast, Snapshot, StepDone, StepNow

_ALIVE_EVERY_SEC: Final = 5.0
_OVER_SEC: Final = 120.0  # without a line, a run whose processes cannot be asked is over
_MOST_DONE: Final = 60
_FORECAST_EVERY_SEC: Final = 2.0
_FORECAST_SHARE: Final = 0.05  # of a core, at most: one of 32,000 requests takes a third of a second
_FIRST_STEPS: Final = 12  # that were finished before we came, at most
_FIRST_BYTES: Final = 256 * 2**20  # of their files, but at least one step
_NAMED: Final = 3  # unreadable files
_QUIET_SEC: Final = 10.0  # a run that logs is not left for another one


class FollowedRun:
    """The state of the run that is followed."""

    def __init__(self, folder: Path, with_done: bool) -> None:
        self.folder = folder
        self.tail = Tail(folder)
        self._counts = Counts()
        self._liveness = Liveness(folder)
        self._analyst = Analyst(folder) if with_done else None
        self._next_alive = 0.0
        self._failed: str | None = None
        self._forecaster = Forecaster()
        self._forecast: tuple[float, StepKey, Forecast | None] = (0.0, (0, False), None)
        self._done: dict[StepKey, StepDone] = {}
        self._asked: dict[StepKey, object] = {}
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
        if now >= self._next_alive:
            self._next_alive = now + _ALIVE_EVERY_SEC
            self._liveness.look(self._counts.run_id)
        if not self.tail.more:
            self._learn()
            self._ask()
        return self.tail.more

    def snapshot(self, now: float) -> Snapshot:
        """Return what is known."""
        if self._analyst is not None:
            self._done.update(self._analyst.done())
        self._done = {key: self._done[key] for key in sorted(self._done)[-_MOST_DONE:]}
        done = tuple(self._done.values())
        counts, ended = self._counts, self._ended(now)
        moment = Now(counts, now, wall_us(), self._liveness.alive, ended is not None)
        step = counts.newest()
        in_progress = snapshots.step_now(moment, step, done)
        if in_progress is not None:
            in_progress = replace(in_progress, forecast=self._forecast_of(moment, step, in_progress))
        problems = snapshots.problems_now(moment, step, in_progress, self._own_problems())
        return Snapshot(
            logs=str(self.folder),
            run_id=counts.run_id,
            at_us=moment.at_us,
            step=in_progress,
            done=done,
            problems=problems,
            workers=snapshots.workers_now(moment, step, problems),
            totals=snapshots.totals_of(moment),
            ended=ended,
            waiting=None if counts.processes else f"{self.folder}: no records yet",
            behind_sec=self.tail.behind_sec(),
            catching_up=self.tail.more,
        )

    def _forecast_of(self, now: Now, step: StepKey | None, in_progress: StepNow) -> Forecast | None:
        """Return the forecast of the step in progress, made anew now and then."""
        again_at, of_step, known = self._forecast
        if step is None or (of_step == step and now.now < again_at):
            return known if step is not None else None
        begun = time.thread_time()
        try:
            known = self._forecaster.forecast(now, step, in_progress.age_sec, in_progress.requests_expected)
        except Exception as error:  # records may be odd: without a forecast, all the rest is still known
            known, self._failed = None, f"no forecast: {error!r}"
        rest = (time.thread_time() - begun) / _FORECAST_SHARE
        self._forecast = (now.now + max(_FORECAST_EVERY_SEC, rest), step, known)
        return known

    def is_quiet(self, now: float) -> bool:
        """Return whether nothing was logged for a while."""
        return self._silent_sec(now) > _QUIET_SEC

    def wait_for_done(self) -> None:
        """Wait until the finished steps are analysed."""
        if self._analyst is not None:
            self._analyst.wait()

    def close(self) -> None:
        """End what was started."""
        if self._analyst is not None:
            self._analyst.close()

    def _silent_sec(self, now: float) -> float:
        return now - max((one.last_at for one in self._counts.processes.values()), default=self._begun)

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
        if processes and all(one.log_closed for one in processes):
            return "all processes have closed their logs"
        if processes and self._silent_sec(now) > _OVER_SEC:
            return f"no process has written anything for {_OVER_SEC / 60:.0f} minutes"
        return None

    def _own_problems(self) -> list[str]:
        failures = list(self.tail.failures.items())
        told = [f"{path}: {why}" for path, why in failures[:_NAMED]]
        if len(failures) > _NAMED:
            told.append(f"{len(failures) - _NAMED} more files cannot be read")
        if self._analyst is not None and self._analyst.failed:
            told.append(self._analyst.failed)
        if self._failed is not None:
            told.append(self._failed)
        return told

    def _begin_run(self) -> None:
        """Forget the steps that a run which began again will do again."""
        first = min((step for step, _ in self._counts.steps), default=0)
        if self._run_id is not None:
            self._done = {key: one for key, one in self._done.items() if key[0] < first}
            self._asked = {key: state for key, state in self._asked.items() if key[0] < first}
            self._forecaster = Forecaster()
        self._run_id = self._counts.run_id

    def _learn(self) -> None:
        """Let the forecast learn from steps that ended."""
        for step, parts in self._counts.steps.items():
            if all(part.is_closed for part in snapshots.rollouts(parts).values()):
                try:
                    self._forecaster.learn(self._counts, step)
                except Exception as error:
                    self._failed = f"no forecast learns from step {step[0]}: {error!r}"

    def _ask(self) -> None:
        """Ask for the numbers of steps that ended, and once more when the next one has begun."""
        if self._analyst is None:
            return
        if not self._asked:
            self._ask_for_earlier()
        steps = self._counts.in_order()
        for at, key in enumerate(steps):
            parts = snapshots.rollouts(self._counts.steps[key])
            if not all(part.is_closed for part in parts.values()):
                continue
            following = steps[at + 1 : at + 2]
            state = (len(parts), tuple(following))
            if self._asked.get(key) != state:
                self._asked[key] = state
                self._analyst.ask([folder_of(key)], [folder_of(one) for one in following])

    def _ask_for_earlier(self) -> None:
        assert self._analyst is not None  # noqa: S101 - the caller asked
        known = [folder_of(key) for key in self._counts.in_order()]
        names = _earlier_steps(self.folder, set(known))
        self._asked[-1, False] = names
        if names:
            self._analyst.ask(names, known[:1])


def _earlier_steps(folder: Path, known: set[str]) -> list[str]:
    """Return the folders of the last steps before those that are `known`, as far as they are read quickly."""
    steps = [
        (int(number), entry.name)
        for entry in os.scandir(folder)
        if (number := entry.name.removeprefix("step_")) != entry.name and number.isdecimal() and int(number)
    ]
    earlier = [name for _, name in sorted(steps) if name not in known]
    chosen: list[str] = []
    left = _FIRST_BYTES
    for name in reversed(earlier[-_FIRST_STEPS:]):
        left -= sum(entry.stat().st_size for entry in os.scandir(folder / name))
        if left < 0 and chosen:
            break
        chosen.append(name)
    return chosen[::-1]


def wall_us() -> int:
    """Return now, Unix epoch in microseconds."""
    return time.time_ns() // 1000
