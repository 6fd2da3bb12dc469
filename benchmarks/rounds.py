"""Run variants in many rounds, in random order, and compare them round by round.

Other load on the machine slows all variants of a round alike. So ratios are computed within each round; the
result is their median, with the quartiles as its spread.
"""

import json
import os
import platform
import random
import statistics
import subprocess
import sys
import tempfile
import time
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
RESULTS = HERE / "results"
ROUNDS = int(os.environ.get("BENCH_ROUNDS", "21"))


@dataclass(frozen=True)
class Spread:
    """A median and its quartiles."""

    low: float
    median: float
    high: float

    @classmethod
    def of(cls, values):
        low, median, high = (
            statistics.quantiles(values, n=4, method="inclusive") if len(values) > 1 else values * 3
        )
        return cls(low, median, high)


class Child:
    """A process that runs one variant, one round per request."""

    def __init__(self, subject, variant):
        self._folder = tempfile.TemporaryDirectory(dir=RESULTS)
        self._errors = tempfile.TemporaryFile("w+")  # noqa: SIM115 - closed with the child
        self._process = subprocess.Popen(
            [sys.executable, str(HERE / "child.py"), subject, variant, self._folder.name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            text=True,
            cwd=HERE,
        )

    def round(self):
        self._process.stdin.write("go\n")
        self._process.stdin.flush()
        answer = self._process.stdout.readline()
        if not answer:
            self._errors.seek(0)
            raise RuntimeError(self._errors.read())
        return json.loads(answer)

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self._process.communicate(timeout=60)
        self._errors.close()
        self._folder.cleanup()


def run_rounds(subject, variants, rounds=ROUNDS):
    """Return a list of rounds: each variant's answer, measured one after the other in random order."""
    warm_page_cache()
    order = random.Random(0)
    with ExitStack() as stack:
        children = {variant: stack.enter_context(Child(subject, variant)) for variant in variants}
        for child in children.values():
            child.round()  # the first one pays for imports, files and memory
        answers = []
        for _ in range(rounds):
            shuffled = list(children)
            order.shuffle(shuffled)
            answered = {variant: children[variant].round() for variant in shuffled}
            answers.append({variant: answered[variant] for variant in variants})
    return answers


def values(rounds, variant, key):
    """Return one number of a variant in each round."""
    return [answers[variant][key] for answers in rounds]


def ratios(rounds, variant, to, key):
    """Return the spread of the ratio of one variant to another, taken within each round."""
    return Spread.of([answers[variant][key] / answers[to][key] for answers in rounds])


def middle(values):
    """Return the Hodges-Lehmann estimate and its 95 % interval, by Wilcoxon's signed ranks.

    The median of the means of all pairs of values, including each value with itself. With normal noise it is
    almost as precise as the mean (the median is as precise as the mean of two thirds of the values), and
    outliers change it little.
    """
    n = len(values)
    means = sorted((first + other) / 2 for place, first in enumerate(values) for other in values[: place + 1])
    beyond = n * (n + 1) / 4 - 1.96 * (n * (n + 1) * (2 * n + 1) / 24) ** 0.5
    index = max(0, int(beyond))
    return statistics.median(means), means[index], means[-1 - index]


def interval(values, draws=4000):
    """Return the bootstrapped 95 % interval of the median."""
    drawn = random.Random(0)
    medians = sorted(statistics.median(drawn.choices(values, k=len(values))) for _ in range(draws))
    return medians[int(0.025 * draws)], medians[int(0.975 * draws)]


def warm_page_cache():
    """Write and delete 100 MB: on a new virtual machine the first use of memory takes ten times as long."""
    RESULTS.mkdir(exist_ok=True)
    with tempfile.NamedTemporaryFile(dir=RESULTS) as file:
        for _ in range(100):
            file.write(bytes(2**20))
        file.flush()


def save(name, rows, **raw):
    """Write the table, its rounds and the machine to results/NAME.json."""
    RESULTS.mkdir(exist_ok=True)
    machine = {
        "python": platform.python_version(),
        "machine": platform.platform(),
        "cpus": os.cpu_count(),
        "load": os.getloadavg(),
        "at": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
    }
    path = RESULTS / f"{name}.json"
    path.write_text(json.dumps({"machine": machine, "rows": rows, **raw}, indent=1, default=vars))


def table(title, columns, rows):
    """Return a table as text."""
    cells = [[str(cell) for cell in row] for row in (columns, *rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    lines = [
        "  ".join(
            cell.rjust(width) if place else cell.ljust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in cells
    ]
    return "\n".join(["", title, *lines, ""])
