"""Count how often comparisons, and verdicts on weights and routers, err over hundreds of made-up runs."""

import math
from random import Random
from statistics import median

import pytest
from planted_weights import CAUSES, causes_in, run_with_updates
from rounds import save, table
from routed_run import QUIET_SHAPES, RoutedRun

from sglang_instrument.analysis import findings_of, open_run
from sglang_instrument.analysis.changes.compare import comparison_of
from sglang_instrument.analysis.changes.metrics import METRICS
from sglang_instrument.analysis.changes.statistics import ALPHA, MOST_STEPS, difference
from sglang_instrument.testing import FallingAcceptance, synthetic_run

PAIRS = 2000
EQUAL = 0.05  # of equal runs are called different, at most
SLOWER = 0.8  # of runs that are 3.3 times as slow are called slower after three steps, at least
POWER = (0.65, 0.95)  # of runs are told apart by as many steps as small samples say are needed
SEEDS = range(30)  # of runs with weight updates
FEW = 10  # seeds of each shape of other runs


def steps_of(random, metric, steps, alike):
    """Draw a value a step: even, long-tailed, or alike to the step before, by the metric."""
    if metric in ("preprocess", "postprocess", "broadcast", "cache"):
        return {step: random.uniform(0.8, 1.2) for step in range(steps)}
    if metric in ("p99", "duration"):
        return {step: max(random.lognormvariate(0, 1) for _ in range(48)) for step in range(steps)}
    log, made = 0.0, {}
    for step in range(-20, steps):
        log = (alike if metric == "engine" else 0.0) * log + random.gauss(0, 0.1)
        made[step] = math.exp(log)
    return {step: made[step] for step in range(steps)}


def drawn(random, count, log=0.0):
    return [random.lognormvariate(log, 0.2) for _ in range(count)]


def most(share, pairs):
    """Return the most pairs of so many that may err if this share does: two standard deviations more."""
    return share * pairs + 2 * math.sqrt(share * pairs)


@pytest.mark.parametrize(("steps", "alike"), [(2, 0.0), (3, 0.0), (10, 0.0), (10, 0.4)])
def test_equal_runs_are_called_different_in_at_most_one_of_twenty_pairs(steps, alike, show):
    random, wrong = Random(steps), 0
    for _ in range(PAIRS):
        made = [{name: steps_of(random, name, steps, alike) for name in METRICS} for _ in range(2)]
        verdicts = comparison_of(*made, [*range(steps)], [*range(steps)]).table["verdict"]
        wrong += verdicts.is_in(["higher", "lower"]).any()
    show(f"{steps} steps, neighbours alike by {alike}: {wrong} of {PAIRS} equal pairs are called different")
    assert wrong <= most(EQUAL, PAIRS)


@pytest.mark.parametrize("sizes", [(2, 3), (2, 40), (3, 40), (4, 12), (10, 100)])
def test_equal_samples_of_unequal_sizes_are_called_different_by_chance_alone(sizes, show):
    random = Random(11)
    wrong = sum(difference(*(drawn(random, size) for size in sizes)).p_value() <= ALPHA for _ in range(PAIRS))
    show(f"samples of {sizes} steps: {wrong} of {PAIRS} equal pairs are called different")
    assert wrong <= most(EQUAL, PAIRS)


def test_a_run_3_times_slower_is_called_slower_after_three_steps_in_four_of_five_pairs(show):
    random, slower, steps = Random(3), 0, [0, 1, 2]
    for _ in range(PAIRS):
        made = [{name: steps_of(random, name, 3, 0.0) for name in METRICS} for _ in range(2)]
        for values, log in zip(made, (0.0, 1.19), strict=True):
            values["duration"] = {step: random.lognormvariate(log, 0.25) for step in steps}
        table_of_pair = comparison_of(*made, steps, steps).table
        slower += table_of_pair.filter(metric="duration")["verdict"].item() == "higher"
    show(f"{slower} of {PAIRS} runs 3.3 times as slow are called slower after three steps")
    assert slower >= SLOWER * PAIRS


@pytest.mark.parametrize("sizes", [(200, 200), (8, 8), (5, 200), (200, 5)])
def test_as_many_steps_as_are_needed_tell_runs_apart_in_four_of_five_pairs(sizes, show):
    """What the median of such samples needs tells an equal run from one that takes 1.2 times as long."""
    random = Random(7)
    differences = [difference(*(drawn(random, size) for size in sizes)) for _ in range(61)]
    needed = round(median(each.steps_needed(1.2) or MOST_STEPS for each in differences))
    apart = sum(
        difference(drawn(random, needed), drawn(random, needed)).p_value(1.2) <= ALPHA for _ in range(PAIRS)
    )
    show(f"{sizes} steps need {needed}, which tell {apart} of {PAIRS} pairs")
    assert POWER[0] < apart / PAIRS < POWER[1]


def test_what_is_planted_in_weight_updates_is_found_and_nothing_else(tmp_path, show):
    rows = []
    for name, planted in {**CAUSES, "nothing": {}}.items():
        expected = set() if name == "nothing" else {name}
        right = sum(
            causes_in(run_with_updates(tmp_path / f"{name}-{seed}", seed, **planted)) == expected
            for seed in SEEDS
        )
        rows.append((name, right, len(SEEDS)))
    show(table("weight updates in which one thing went wrong", ("planted", "right", "of"), rows))
    save("weight-updates", rows)
    assert all(right == of for _, right, of in rows)


def routing_causes_in(folder):
    findings = findings_of(open_run(folder, cached=False), over=True)
    return {finding.cause for finding in findings} & {"cache-lost", "conversations-moved", "uneven-servers"}


def test_a_router_is_accused_where_it_costs_time_and_nowhere_else(tmp_path, show):
    costly = {
        "cache-lost": {"steps": 5, "flushed": (3,)},
        "conversations-moved": {"steps": 5, "policy": "random"},
        "uneven-servers": {"policy": "skewed", "slots": 6, "requests": 20},
    }
    shapes = [
        *((shape, {cause}) for cause, shape in costly.items()),
        *((shape, set()) for shape in QUIET_SHAPES),
    ]
    rows = []
    for number, (shape, expected) in enumerate(shapes):
        folders = (RoutedRun(seed=seed, **shape).write(tmp_path / f"{number}-{seed}") for seed in range(FEW))
        rows.append((str(shape), sum(routing_causes_in(folder) == expected for folder in folders), FEW))
    show(table("runs whose router costs time, or does not", ("shape", "right", "of"), rows))
    save("routing", rows)
    assert all(right == of for _, right, of in rows)


@pytest.mark.parametrize("fall", [0.0, 0.06])
def test_acceptance_that_falls_over_training_is_found_and_one_that_stays_is_not(tmp_path, show, fall):
    shape = {"steps": 10, "workers": 4, "requests": 16, "causes": [FallingAcceptance(fall)]}
    right = 0
    for seed in range(FEW):
        run = open_run(synthetic_run(tmp_path / str(seed), seed=seed, **shape))
        causes = {finding.cause for finding in findings_of(run)} & {"speculation", "trend", "engine"}
        right += causes == ({"speculation"} if fall else set())
    show(f"acceptance that falls by {fall:.0%} a step: {right} of {FEW} verdicts are right")
    assert right == FEW
