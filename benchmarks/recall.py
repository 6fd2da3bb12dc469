"""Measure how often the verdict finds planted causes and accuses clean runs: `python recall.py`.

`python recall.py clean 1000` and `python recall.py other 1000` check 1,000 clean runs of our own generator
and of one that the rules were not tuned on (`tests/support/other_runs.py`); `python recall.py curves 20`
prints the recall curves of benchmarks/results.md from 20 runs a row, `python recall.py deaths 20` those of
killed workers.
"""

import shutil
import sys
import tempfile
from collections import Counter
from functools import partial
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from dead_worker import kill_worker
from other_runs import OtherRun

from sglang_instrument.analysis import open_run
from sglang_instrument.analysis.verdict.verdict import findings_of
from sglang_instrument.testing import BlockedLoop, Hang, Plateau, SlowReward, Straggler, synthetic_run

WHERE = (3, 2)  # step and worker of the planted cause
CURVES = {
    "engine times slower": [
        ("straggler", x, {"straggler": Straggler(*WHERE, x)}) for x in (1.1, 1.2, 1.25, 1.3, 1.5, 2, 3)
    ],
    "rewards slower by s": [
        ("slow_reward", x, {"slow_reward": SlowReward(*WHERE, x)}) for x in (0.5, 1, 2, 3, 5, 10)
    ],
    "loop blocked for s": [
        ("blocked_loop", x, {"blocked_loop": BlockedLoop(*WHERE, 5.0, x)}) for x in (0.5, 1, 2, 3, 5)
    ],
    "8 of 16 stuck for s": [
        ("plateau", x, {"plateau": Plateau(*WHERE, 20.0, 20.0 + x, 8)}) for x in (5, 10, 20, 40, 80)
    ],
    "a tool never returns": [("hang", 1, {"hang": Hang(*WHERE)})],
    "a clock ahead by s": [(None, x, {"clock_skew": {2: x}}) for x in (1.0, 100.0)],
}
OTHER_CURVES = {
    f"{kind} times slower": [(cause, x, (kind, *WHERE, x)) for x in (1.25, 1.5, 2.0, 3.0, 5.0)]
    for kind, cause in (("engine", "straggler"), ("tool", "slow_tool"), ("reward", "slow_reward"))
}
SHARES = (0.2, 0.5, 0.8, 0.95)  # the worker is killed after this share of its way to the barrier
AHEAD_SEC = (0, 2, 5, 10, 20, 40, 80, 300)  # the worker is killed so many seconds before the others


def found_in(write, over=False):
    """Write a run, and return what the verdict finds in it; `over` is whether it has ended."""
    folder = Path(tempfile.mkdtemp())
    try:
        write(folder)
        run = open_run(folder, cached=False)
        return findings_of(run, over)
    finally:
        shutil.rmtree(folder)


def planted_run(seed, planted):
    """Return a function that writes a run with a cause, by our generator (a dict) or the other (a tuple)."""
    if isinstance(planted, tuple):
        return OtherRun(seed, slow=planted).write
    return partial(synthetic_run, steps=6, workers=4, requests=16, seed=seed, **planted)


def clean(seed):
    """Return the findings in a clean run of our generator with a random shape."""
    random = Random(seed)
    shape = {
        "workers": random.randint(1, 8),
        "requests": random.choice([8, 16, 32]),
        "steps": random.randint(3, 12),
    }
    return found_in(lambda folder: synthetic_run(folder, seed=seed, **shape))


def other(seed):
    """Return the findings in a clean run of the other generator."""
    return found_in(OtherRun(seed).write)


def accused(runs, look):
    """Print how many clean runs have a finding."""
    causes, seeds = Counter(), []
    for seed in range(runs):
        found = look(seed)
        causes.update({one.cause for one in found})
        seeds += [seed] if found else []
    print(f"{look.__name__}: {len(seeds)} of {runs} clean runs accused {dict(causes)} {seeds}", flush=True)


def curves(runs):
    """Print for each planted size in how many runs it was found, and how many other findings there were."""
    for curve in (CURVES, OTHER_CURVES):
        for title, row in curve.items():
            told = []
            for cause, size, planted in row:
                hits = wrong = 0
                for seed in range(runs):
                    found = found_in(planted_run(seed, planted))
                    hits += any(one.cause == cause and (one.step, one.worker) == WHERE for one in found)
                    wrong += any((one.step, one.worker) != WHERE or cause is None for one in found)
                told.append(f"{size:g}: {hits}" + (f" ({wrong} others accused)" if wrong else ""))
            print(f"{title}, of {runs}: {', '.join(told)}", flush=True)


def deaths(runs):
    """Print in how many runs the killed worker was named, and how often another one was."""
    for kind, planted in (("own", {}), ("other", ("nothing", *WHERE, 1.0))):
        for share in SHARES:
            told = []
            for ahead_sec in AHEAD_SEC:
                found = [death_in(seed, planted, share, ahead_sec) for seed in range(runs)]
                hits = sum(any(at == WHERE and one.cause == "death" for at, one in each) for each in found)
                wrong = sum(any(at != WHERE for at, _ in each) for each in found)
                told.append(f"{ahead_sec:g}: {hits}" + (f" ({wrong} others accused)" if wrong else ""))
            print(f"{kind}, killed at {share:.0%}, s before the others: {', '.join(told)}", flush=True)


def death_in(seed, planted, share, ahead_sec):
    """Return the place of each death or hang that the verdict names, with the findings."""

    def write(folder):
        planted_run(seed, planted)(folder)
        kill_worker(folder, *WHERE, share, ahead_sec)

    found = found_in(write, over=True)
    return [((one.step, one.worker), one) for one in found if one.cause in ("death", "hang")]


if __name__ == "__main__":
    what, runs = sys.argv[1], int(sys.argv[2])
    if what in ("curves", "deaths"):
        {"curves": curves, "deaths": deaths}[what](runs)
    else:
        accused(runs, {"clean": clean, "other": other}[what])
