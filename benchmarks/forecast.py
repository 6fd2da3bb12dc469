"""Ask for forecasts of generated steps whose ends are known: `forecast.py`.

Each step of a run but the first is forecast at a quarter, half and three quarters of its time, from the steps
before it. The exit code is 1 if a bound is not met, over all clean shapes of `recall.py`:

- 75 to 85 % of the steps end within their 80 % intervals,
- 99 % of the calls that never return are named within 10 s after they have been open for longer than any that
  ended, if at least three steps have ended,
- at most 1 in 1,000 clean steps has a request that is named and ends,
- a forecast of 64 workers with 512 requests each takes at most 100 ms of CPU time.

"Score" is the mean interval score of Winkler (the width, and 10 times what an end is outside by), over the
true time left: smaller is better. "Naive" is the same for "as long as the last steps": an 80 % interval of
the logarithms of their times. An error is the standard error over runs.

--quick makes a small sample, --runs N so many runs of each shape, --only NAME the shapes whose names contain
it, or those of a group (clean, swept, planted), --jobs N uses so many processes.
"""

import argparse
import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random
from typing import NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy.stats import t as student

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/support"))
from clean_shapes import CLEAN_SHAPES
from forecast_steps import MadeStep, drawn_steps, steps_of, steps_of_other, steps_of_world
from recall import OTHER, results_of

from sglang_instrument.live.forecasting.forecast import History, forecast
from sglang_instrument.live.forecasting.hanging import hanging
from sglang_instrument.live.forecasting.history import PastStep, Requests, StepSoFar
from sglang_instrument.testing.kinds import KINDS, STEP, sized
from sglang_instrument.testing.usual_run import ENGINE, WORKLOAD, usual_shape
from sglang_instrument.testing.world.rollout.shape import OWN, ROUTED

ASKED = (0.25, 0.5, 0.75)
HOLD = (0.75, 0.85)
NAMED_SEC = 10.0
BEHIND_SEC = 3.0  # a follower at most
LOOK_SEC = 0.25
GIVE_UP_SEC = 3600.0
KNOWN_STEPS = 3  # before the step in which calls hang
IN_TIME = 0.99
FALSE = 0.001
FORECAST_SEC = 0.1
LARGER = 0.25  # by which planted causes lengthen their step
FIRST_SEED = 100_000  # the constants of the forecast were chosen on others
WAVES = "requests begin in waves"  # in every other run without knowing how many
MOST_STEPS = 8  # that the naive forecast looks back


def _varied(engine=None, workload=None, **shape):
    def steps(seed: int) -> Iterator[MadeStep]:
        work, served = replace(WORKLOAD, **(workload or {})), replace(ENGINE, **(engine or {}))
        return steps_of(replace(usual_shape(seed), workload=work, engine=served, **shape))

    return steps


def _clean(name: str):
    def steps(seed: int) -> Iterator[MadeStep]:
        clean = CLEAN_SHAPES[name](seed)
        return steps_of(clean.shape, clean.causes)

    return steps


def _without_turns(seed: int) -> Iterator[MadeStep]:
    for made in steps_of(usual_shape(seed)):
        requests = replace(made.past.requests, turns_sec=made.past.requests.turns_sec[:, :0])
        yield replace(made, past=replace(made.past, requests=requests))


def _world(seed: int, family: str, hidden: bool) -> Iterator[MadeStep]:
    return steps_of_world(family, seed, hidden=hidden)


#: Shapes of `recall.py` whose files look otherwise, or whose trainer does: their rollouts are the usual ones.
SAME_ROLLOUT = {
    "overlap",
    "recorded trainer",
    "skewed clocks",
    "engine logs",
    "reference's format",
    "torn closing line",
}
CLEAN = {name: _clean(name) for name in CLEAN_SHAPES if name not in SAME_ROLLOUT}
SWEPT = {
    OTHER: steps_of_other,
    "lengths to 16,384 tokens, sigma 1.3": _varied(
        workload={"tokens_log": 4.6, "tokens_sigma": 1.3, "most_tokens": 16384}
    ),
    "lengths + 15 % a step": _varied(workload={"growth": 0.15}),
    "lengths - 10 % a step": _varied(workload={"growth": -0.1}),
    "tools with sigma 1.2": _varied(workload={"tail": 1.2}),
    "1 turn": _varied(workload={"most_turns": 1}),
    "10 to 20 turns": lambda seed: drawn_steps(seed, slots=48, turns=(10, 20)),
    "8 requests a worker": _varied(requests=8),
    "1 worker, 4 requests": _varied(workers=1, requests=4),
    "engines that queue nothing": _varied(engine={"most_running": None, "load_sec": 0.0}),
    WAVES: lambda seed: drawn_steps(seed, slots=12, turns=(1, 5)),
    "turns not known": _without_turns,
    **{
        f"world{', hidden' * hidden}: {family}": partial(_world, family=family, hidden=hidden)
        for family in (ROUTED, OWN)
        for hidden in (False, True)
    },
}


class Asked(NamedTuple):
    """A question and its answer; times are seconds from when it was asked."""

    before: int  # steps
    share: float  # of the step's time
    left: float
    low: float
    high: float
    naive_low: float
    naive_high: float
    is_right: bool  # what decides
    said: float  # how probable that was


class Hung(NamedTuple):
    """A call that never returns: its event, and how long after leaving the range it was named."""

    event: str
    before: int
    after_sec: float


class Result(NamedTuple):
    """What a run gave."""

    name: str
    asked: list[Asked]
    hung: list[Hung]
    steps: int
    falsely: int  # steps in which a request was named that ended


def naive(ends: Sequence[float], age_sec: float) -> tuple[float, float]:
    """Return an 80 % interval from the lengths of the last steps alone."""
    logs = np.log(ends[-MOST_STEPS:])
    reach = 0.64  # with one step nobody knows: half to twice as long
    if len(logs) > 1:
        reach = logs.std(ddof=1) * np.sqrt(1 + 1 / len(logs)) * student.ppf(0.9, len(logs) - 1)
    low, high = (float(np.exp(logs.mean() + sign * reach)) - age_sec for sign in (-1, 1))
    return max(low, 0.0), max(high, 0.0)


def ask(history: History, made: MadeStep, share: float, ends: Sequence[float], number_known: bool) -> Asked:
    past = made.past
    age_sec = share * past.end_sec
    now = made.as_of(age_sec)
    answer = forecast(history, now if number_known else replace(now, expected=None))
    last = past.requests.ids[int(past.requests.ended_sec.argmax())]
    is_right = answer.decides is not None and answer.decides[1] == last
    left = past.end_sec - age_sec
    interval = answer.low_sec, answer.high_sec, *naive(ends, age_sec)
    return Asked(len(ends), share, left, *interval, is_right, answer.decides_share)


def names_falsely(history: History, made: MadeStep) -> bool:
    """Return whether a request is named that ends; the calls are looked at when they are about to end."""
    for call in made.calls:
        longest_sec = call.end_sec - call.start_sec
        if longest_sec > max(
            (max(earlier.longest_sec.get(call.event, (0.0,))) for earlier in history.steps), default=0.0
        ):
            looks = np.append(np.arange(call.start_sec, call.end_sec, 1.0), call.end_sec - 1e-6)
            if any(_names(history, made, call, age_sec) for age_sec in looks):
                return True
    return False


def _names(history, made, call, age_sec) -> bool:
    ended = [other for other in made.calls if other.event == call.event and other.end_sec <= age_sec]
    longest_sec = {call.event: [other.end_sec - other.start_sec for other in ended]}
    open_events = {0: (call.event, age_sec - call.start_sec)}
    return bool(
        hanging(history.steps, StepSoFar(age_sec, made.past.requests, None, open_events, longest_sec))
    )


def hang(history: History, made: MadeStep, random: Random) -> Hung:
    """Let a call hang, and look until it is named."""
    stuck, call = made.hung(random)
    ended = [other for other in stuck.calls if other.event == call.event and other.end_sec < np.inf]
    past_sec = max(max(earlier.longest_sec.get(call.event, (0.0,))) for earlier in history.steps)
    age_sec = left_sec = call.start_sec
    while not _names(history, stuck, call, age_sec) and age_sec < left_sec + GIVE_UP_SEC:
        now_sec = max(
            (other.end_sec - other.start_sec for other in ended if other.end_sec <= age_sec), default=0.0
        )
        left_sec = min(age_sec, call.start_sec + max(past_sec, now_sec))
        age_sec += LOOK_SEC
    return Hung(call.event, len(history.steps), age_sec - left_sec)


class Job(NamedTuple):
    """A run to make, and what is measured in it."""

    name: str
    group: str
    seed: int
    hangs: bool = False
    intervals: bool = True


def run(job: Job) -> Result:
    if job.group == "planted":
        return _planted(job)
    shapes = CLEAN if job.group == "clean" else SWEPT
    return _measured(job, shapes[job.name](job.seed))


def _planted(job: Job) -> Result:
    kind = KINDS[job.name]
    shape = kind.shape(job.seed)
    steps = list(steps_of(shape, [sized(kind, shape, LARGER)]))
    concerned = kind.step or STEP
    return _measured(job, steps[:concerned], only=concerned)


def _measured(job: Job, steps, only: int | None = None) -> Result:
    history, ends, random = History(), [], Random(f"{job.name}/{job.seed}")
    result = Result(job.name, [], [], 0, 0)
    count = falsely = 0
    for number, made in enumerate(steps, 1):
        if history.steps and only in (None, number):
            if job.intervals:
                known = job.name != WAVES or job.seed % 2 == 0
                result.asked.extend(ask(history, made, share, ends, known) for share in ASKED)
            count += 1
            falsely += bool(made.calls) and names_falsely(history, made)
            if job.hangs and made.calls:
                result.hung.append(hang(history, made, random))
        if job.intervals:
            history = history.after(made.past)
        else:
            history = History((*history.steps, made.past)[-MOST_STEPS:])
        ends.append(made.past.end_sec)
    return result._replace(steps=count, falsely=falsely)


def holds(asked: Sequence[Asked]) -> float:
    """Return the share of the intervals that held."""
    return float(np.mean([question.low <= question.left <= question.high for question in asked]))


def error(results: Sequence[Result]) -> float:
    """Return the standard error of that share: the runs are independent, the questions in one are not."""
    runs = [result.asked for result in results if result.asked]
    total = sum(map(len, runs))
    middle = holds([question for asked in runs for question in asked])
    off = [
        sum((question.low <= question.left <= question.high) - middle for question in asked) for asked in runs
    ]
    if len(runs) < 2:
        return float("nan")
    return float(np.sqrt(np.sum(np.square(off)) * len(runs) / (len(runs) - 1)) / total)


def _score(low: float, high: float, left: float) -> float:
    return (high - low + 10 * (max(low - left, 0.0) + max(left - high, 0.0))) / left


def cells(results: Sequence[Result], keep=lambda question: True) -> list[str]:
    """Return the cells of a row on these runs."""
    picked = [result._replace(asked=[each for each in result.asked if keep(each)]) for result in results]
    asked = [each for result in picked for each in result.asked]
    if not asked:
        return ["", "", "", "", "", "", "", ""]
    is_right = np.mean([question.is_right for question in asked])
    said = np.mean([question.said for question in asked])
    naive_holds = np.mean([question.naive_low <= question.left <= question.naive_high for question in asked])
    widths = [
        np.median([(high - low) / question.left for question, low, high in _pairs(asked, ours)])
        for ours in (True, False)
    ]
    scores = [
        np.mean([_score(low, high, question.left) for question, low, high in _pairs(asked, ours)])
        for ours in (True, False)
    ]
    return [
        str(len(asked)),
        f"{holds(asked):.1%} ± {error(picked):.1%}",
        f"{widths[0]:.2f}",
        f"{scores[0]:.2f}",
        f"{naive_holds:.1%}",
        f"{widths[1]:.2f}",
        f"{scores[1]:.2f}",
        f"{is_right:.0%}, said {said:.0%}",
    ]


def _pairs(asked: Sequence[Asked], ours: bool):
    return [
        (question, question.low, question.high)
        if ours
        else (question, question.naive_low, question.naive_high)
        for question in asked
    ]


COLUMNS = (
    "asked",
    "hold",
    "width / left",
    "score",
    "naive holds",
    "width / left",
    "score",
    "what decides is right",
)


def print_intervals(title: str, results: Sequence[Result], console: Console) -> None:
    """Print a row for each shape, and for all by the time asked and the number of earlier steps."""
    table = Table(title, *COLUMNS)
    for name in dict.fromkeys(result.name for result in results):
        table.add_row(name, *cells([result for result in results if result.name == name]))
    table.add_section()
    table.add_row("all", *cells(results))
    for share in ASKED:
        table.add_row(
            f"at {share:.0%} of the step",
            *cells(results, lambda question, share=share: question.share == share),
        )
    for low, high, label in ((1, 1, "1 earlier step"), (2, 3, "2 or 3"), (4, 99, "4 and more")):
        rows = cells(results, lambda question, low=low, high=high: low <= question.before <= high)
        table.add_row(label, *rows)
    console.print(table)


def print_hangs(results: Sequence[Result], console: Console) -> float:
    """Print how long after they left the range hangs are named; return the share that is in time."""
    hung = [each for result in results for each in result.hung]
    table = Table(
        "a call hangs", "calls", "named after: median s", "95 % within s", "longest s", "within 10 s"
    )
    late = []
    for event in (*sorted({call.event for call in hung}), "all"):
        after_sec = [
            call.after_sec + BEHIND_SEC
            for call in hung
            if event in (call.event, "all") and call.before >= KNOWN_STEPS
        ]
        in_time = float(np.mean(np.array(after_sec) <= NAMED_SEC)) if after_sec else 1.0
        quantiles = np.quantile(after_sec or [np.nan], [0.5, 0.95, 1.0])
        table.add_row(
            event, str(len(after_sec)), *(f"{quantile:.1f}" for quantile in quantiles), f"{in_time:.1%}"
        )
        late.append(in_time)
    console.print(table)
    return late[-1]


def print_false(title: str, results: Sequence[Result], console: Console) -> float:
    """Print in how many steps a request was named that ended; return their share."""
    table = Table(title, "steps", "falsely named")
    for name in dict.fromkeys(result.name for result in results):
        of_name = [result for result in results if result.name == name]
        table.add_row(
            name, str(sum(result.steps for result in of_name)), str(sum(result.falsely for result in of_name))
        )
    steps, falsely = sum(result.steps for result in results), sum(result.falsely for result in results)
    table.add_row("all", str(steps), str(falsely))
    console.print(table)
    return falsely / max(steps, 1)


def forecast_sec(workers: int = 64, requests: int = 512, turns: int = 4) -> tuple[float, float]:
    """Return the CPU time of one forecast, and of one step's end, at this size and with 8 earlier steps."""
    random = np.random.default_rng(0)

    def step() -> PastStep:
        count = random.integers(1, turns + 1, workers * requests)
        sec = random.lognormal(1.0, 0.8, (len(count), turns))
        starts = np.cumsum(sec, axis=1) - sec
        ends = (sec * (np.arange(turns) < count[:, None])).sum(axis=1)
        rows = ((f"{n}", n // requests, 0.0, ends[n], starts[n][: count[n]]) for n in range(len(count)))
        longest = {"turn_engine_call": (float(sec.max()),)}
        return PastStep(Requests.of(rows), float(ends.max()) + 1.0, longest)

    history, took = History(), []
    for _ in range(MOST_STEPS):
        past = step()
        began = time.process_time()
        history = history.after(past)
        took.append(time.process_time() - began)
    past, took_each = step(), []
    for share in (0.02, 0.02, 0.1, 0.25, 0.5, 0.75):
        now = past.so_far(share * past.end_sec)
        events = {int(place): ("turn_engine_call", 1.0) for place in np.flatnonzero(now.requests.is_open)}
        began = time.process_time()
        forecast(history, replace(now, open_events=events))
        took_each.append(time.process_time() - began)
    return max(took_each[1:]), max(took)  # the first one also prepares the earlier steps


def main(argv: list[str] | None = None) -> int:
    """Print the tables, and return 1 if a bound is not met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="", metavar="NAME")
    parser.add_argument("--runs", type=int, metavar="N")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, metavar="N")
    args = parser.parse_args(argv)
    runs = args.runs or (2 if args.quick else 10)
    named = [
        (name, group)
        for group, names in (("clean", CLEAN), ("swept", SWEPT), ("planted", KINDS))
        for name in names
        if (args.only == group or args.only in name)
        and not (group == "planted" and KINDS[name].step in (None, 1))
    ]
    # A seed of its own for each run: shapes with the same seed have the same requests.
    jobs = [
        Job(name, group, FIRST_SEED + 1000 * number + seed, hangs=group != "planted")
        for number, (name, group) in enumerate(named)
        for seed in range(runs)
    ]
    more = [job._replace(seed=job.seed + runs, intervals=False) for job in jobs if job.group == "clean"]
    console = Console(width=150)
    results = dict(zip([*jobs, *more], results_of(run, [*jobs, *more], args.jobs), strict=True))
    by_group = {
        group: [results[job] for job in jobs if job.group == group] for group in ("clean", "swept", "planted")
    }
    for group, of_group in by_group.items():
        if of_group:
            print_intervals(group, of_group, console)
    clean = by_group["clean"] + [results[job] for job in more]
    met = []
    if clean:
        share = holds([each for result in by_group["clean"] for each in result.asked])
        in_time = print_hangs(clean, console)
        falsely = print_false("clean", clean, console)
        console.print(
            f"80 % intervals hold in {share:.1%}, hangs in time {in_time:.1%}, falsely {falsely:.2%}"
        )
        met += [HOLD[0] <= share <= HOLD[1], in_time >= IN_TIME, falsely <= FALSE]
    for group in ("swept", "planted"):
        if group == "swept" and by_group[group]:
            print_hangs(by_group[group], console)
        if by_group[group]:
            print_false(group, by_group[group], console)
    once, after = forecast_sec()
    console.print(
        f"64 workers, 512 requests: a forecast {once * 1e3:.0f} ms, the end of a step {after * 1e3:.0f} ms"
    )
    return int(not all([*met, once <= FORECAST_SEC]))


if __name__ == "__main__":
    sys.exit(main())
