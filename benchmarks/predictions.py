"""Hold `whatif` and `compare` against runs of which the truth is known: `predictions.py [--seeds N]`.

- `whatif` predicts a run with a faster engine, slower tools or a cap; the same draw is replayed so. Each mean
  prediction must be within 5 % of the truth.
- `compare` gets pairs of runs that differ by chance alone (at most 5 % of them may be called different), and
  pairs of which one has an engine that takes 10 % longer (in 80 % its engine must be called higher).

The exit code is 1 if a bound is not met.
"""

import argparse
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import mean

from rich.console import Console
from rich.table import Table

sys.path.insert(0, str(Path(__file__).parents[1] / "tests/support"))
from sglang_instrument.analysis import Rules, Run, compare_runs, open_run, validation_of, what_if
from sglang_instrument.testing import RunShape
from sglang_instrument.testing.synthetic import write_run
from sglang_instrument.testing.usual_run import usual_shape

WITHIN = 0.05
MOST_EQUAL = 0.05  # of the equal pairs that may be called different
FOUND = 0.8
OTHERS = 1000  # added to a seed for other draws

#: Rules, and how the same draw is replayed under them.
PREDICTED = {
    **{f"engine x {x}": (Rules(scale={"engine": x}), {"engine": x}) for x in (0.5, 0.8, 1.25, 2.0)},
    **{f"tools x {x}": (Rules(scale={"tool": x}), {"tools": x}) for x in (0.5, 2.0, 4.0)},
    **{f"{n} tokens a reply": (Rules(max_turn_tokens=n), {"most_tokens": n}) for n in (128, 256, 512)},
}
#: Pairs of runs: the second one's shape from the first one's, and whether it truly differs.
PAIRS = {
    "equal, other requests": (lambda shape: shape.redrawn(shape.seed + OTHERS), False),
    "engine x 1.1, other requests": (
        lambda shape: shape.redrawn(shape.seed + OTHERS).replayed(engine=1.1),
        True,
    ),
    "engine x 1.1, same requests": (lambda shape: shape.replayed(engine=1.1), True),
}


@contextmanager
def made(shape: RunShape) -> Iterator[Run]:
    """Make a run, and open it."""
    with tempfile.TemporaryDirectory() as folder:
        yield open_run(write_run(Path(folder) / "run", shape), cached=False)


def ratios(shape: RunShape) -> Iterator[float]:
    """Yield each prediction over the truth, as means over the steps."""
    with made(shape) as run:
        for rules, replay in PREDICTED.values():
            with made(shape.replayed(**replay)) as real:
                yield float(validation_of(what_if(run.digest, rules), real.digest)["ratio"])


def differ(shape: RunShape, other: RunShape, slower_engine: bool) -> bool:
    """Return whether `compare` calls the engine of the second run higher, or else any metric different."""
    with made(shape) as first, made(other) as second:
        table = compare_runs(first, second).table
    if slower_engine:
        return bool(table.filter(metric="engine", verdict="higher").height)
    return table["verdict"].is_in(["higher", "lower"]).any()


def predictions(seeds: int, console: Console) -> Iterator[bool]:
    """Print how near predictions come to the truth; yield whether each is near enough."""
    table = Table("whatif", "predicted / true", "least", "most")
    ratios_by_seed = [list(ratios(usual_shape(seed))) for seed in range(seeds)]
    for name, of_rule in zip(PREDICTED, zip(*ratios_by_seed, strict=True), strict=True):
        table.add_row(name, f"{mean(of_rule):.3f}", f"{min(of_rule):.3f}", f"{max(of_rule):.3f}")
        yield abs(mean(of_rule) - 1) <= WITHIN
    console.print(table)


def comparisons(seeds: int, console: Console) -> Iterator[bool]:
    """Print how many pairs of runs are called different; yield whether the bounds are met."""
    table = Table("compare", "called different, or engine called higher")
    shapes = [usual_shape(seed) for seed in range(seeds)]
    for name, (change, is_other) in PAIRS.items():
        count = sum(differ(shape, change(shape), is_other) for shape in shapes)
        table.add_row(name, f"{count}/{seeds}")
        yield count >= FOUND * seeds if is_other else count <= MOST_EQUAL * seeds
    console.print(table)


def main(argv: list[str] | None = None) -> int:
    """Print both tables, and return 1 if a bound is not met."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--seeds", type=int, default=20, metavar="N")
    args = parser.parse_args(argv)
    console = Console(width=100)
    met = [*predictions(max(2, args.seeds // 4), console), *comparisons(args.seeds, console)]
    return int(not all(met))


if __name__ == "__main__":
    sys.exit(main())
