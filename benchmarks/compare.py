"""Say how often `compare` calls equal runs different, and how often it finds a slower engine.

`python compare.py 2000` compares so many pairs of samples of steps. The steps are drawn from pools of 400
simulated ones, whose engine's speed is fitted once, to the pool; `python compare.py runs 30` writes, reads
and compares so many pairs of whole runs. Bounds: equal runs are called different in at most 5 % of pairs; an
engine that takes 10 % longer is found in 80 %, with 10 steps of 48 requests, and so is one that takes 3.3
times as long, with 3 steps. The exit code is 1 if a bound is missed by more than the error of the share.
"""

import shutil
import sys
import tempfile
from collections import Counter
from pathlib import Path
from random import Random

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
from queued import Queued

from sglang_instrument.analysis import compare_runs, open_run
from sglang_instrument.analysis.changes.compare import comparison_of
from sglang_instrument.analysis.changes.metrics import step_values

SHAPES = {
    "1 worker x 48": {"workers": 1, "requests": 48},
    "4 workers x 12": {"workers": 4, "requests": 12},
    "1 x 48, engine slower with more calls": {"workers": 1, "requests": 48, "load_sec": 0.001},
    "1 x 48, engine wanders by 3 %": {"workers": 1, "requests": 48, "drift": 0.03},
}
#: Steps, how many times as long the engine takes, and in which share of pairs that must be found.
TASKS = [(steps, 1.0, None) for steps in (2, 3, 5, 10, 20)] + [(10, 1.1, 0.8), (3, 3.3, 0.8)]
POOL = 400  # steps that are simulated of each engine


def make_run(folder, seed, steps, shape, engine=1.0):
    """Write a run; the one place where runs are made."""
    return Queued(seed=seed, steps=steps, engine=engine, **shape).write(folder)


def different(comparison):
    """Return the metrics in which two runs are called different."""
    table = comparison.table
    return dict(
        table.filter(table["verdict"].is_in(["higher", "lower"])).select("metric", "verdict").iter_rows()
    )


def pool_of(shape, engine):
    """Return the values of many simulated steps of two runs: one as it is, one with this engine."""
    folder = Path(tempfile.mkdtemp())
    try:
        runs = [
            make_run(folder / str(seed), seed, POOL, shape, factor)
            for seed, factor in ((1, 1.0), (2, engine))
        ]
        return step_values(*(open_run(run, cached=False).digest for run in runs))
    finally:
        shutil.rmtree(folder)


def drawn(pool, steps, other_pool, random, wanders):
    """Return steps of two pools, or different ones of one pool; neighbours where the engine wanders."""
    if wanders:
        first = random.randint(2, POOL // 2 - steps)
        second = random.randint(POOL // 2, POOL - steps)
        chosen = range(first, first + steps), range(second, second + steps)
    else:
        both = random.sample(range(2, POOL), 2 * steps)
        chosen = both[:steps], both[steps:]
    return [
        {
            metric: {place: of[step] for place, step in enumerate(picked) if step in of}
            for metric, of in values.items()
        }
        for values, picked in zip((pool, other_pool), chosen, strict=True)
    ]


def by_steps(pairs):
    """Compare pairs of samples of steps; yield whether the bounds are met."""
    for name, shape in SHAPES.items():
        pools = {engine: pool_of(shape, engine) for engine in (1.1, 3.3)}
        for steps, engine, least in TASKS:
            random, outcomes = Random(steps), []
            pool, other = pools[1.1 if engine == 1.0 else engine]
            for _ in range(pairs):
                pair = drawn(pool, steps, pool if engine == 1.0 else other, random, "drift" in shape)
                outcomes.append(different(comparison_of(*pair, [*range(steps)], [*range(steps)])))
            yield is_bound_met(name, steps, engine, least, outcomes)


def by_runs(pairs):
    """Write, read and compare pairs of whole runs; yield whether the bounds are met."""
    for name, shape in SHAPES.items():
        for steps, engine, least in TASKS:
            outcomes = []
            for seed in range(pairs):
                folder = Path(tempfile.mkdtemp())
                runs = [
                    make_run(folder / str(of), 2 * seed + of, steps, shape, (1.0, engine)[of])
                    for of in (0, 1)
                ]
                outcomes.append(different(compare_runs(*(open_run(run, cached=False) for run in runs))))
                shutil.rmtree(folder)
            yield is_bound_met(name, steps, engine, least, outcomes)


def is_bound_met(name, steps, engine, least, outcomes):
    """Print the share of pairs called different, or with the engine found; return if the bound is met."""
    pairs = len(outcomes)
    hits = sum(bool(outcome) if least is None else outcome.get("engine") == "higher" for outcome in outcomes)
    bound = "at most 5 %" if least is None else "no bound" if "wanders" in name else f"at least {least:.0%}"
    error = 1.96 * (max(hits, 1) * (pairs - min(hits, pairs - 1))) ** 0.5 / pairs**1.5
    which = Counter(metric for outcome in outcomes for metric in outcome)
    often = ", ".join(f"{metric} {count / pairs:.1%}" for metric, count in which.most_common(4))
    what = "called different" if least is None else f"an engine {engine:g} times as slow found"
    print(
        f"{name}, {steps} steps: {what} in {hits / pairs:.1%} +- {error:.1%} ({bound}) of {pairs}: {often}",
        flush=True,
    )
    if least is None:
        return hits / pairs <= 0.05 + error
    return "wanders" in name or hits / pairs >= least - error


if __name__ == "__main__":
    wanted = by_runs(int(sys.argv[2])) if sys.argv[1] == "runs" else by_steps(int(sys.argv[1]))
    sys.exit(not all([*wanted]))
