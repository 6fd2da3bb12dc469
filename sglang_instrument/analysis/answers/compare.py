"""Compare two runs step by step, and say which differences exceed the noise."""

from random import Random
from typing import Final

import polars as pl

from sglang_instrument.analysis.answers.steps import step_table
from sglang_instrument.analysis.run.digest import Digest
from sglang_instrument.schema import PHASES

#: The compared metrics: name in `--fail-if`, and column.
METRICS: Final[dict[str, str]] = {
    "duration": "duration_sec",
    "busy": "busy_sec",
    "p50": "p50_sec",
    "p99": "p99_sec",
    "max": "max_sec",
    "tail": "tail",
    "tokens_per_sec": "tokens_per_sec",
    **{str(phase): f"sec_{phase}" for phase in PHASES},
}
_ROUNDS: Final = 2000
_CONFIDENCE: Final = 0.95
_FEWEST: Final = 5  # with fewer common steps, the noise cannot be estimated


def comparison_table(one: Digest, other: Digest, seed: int = 0) -> pl.DataFrame:
    """Return one row per metric that both runs have, over the steps that both runs have.

    Args:
        one: Digest of the baseline run.
        other: Digest of the run to compare with it.
        seed: Seed of the bootstrap.

    Returns:
        metric; steps: number of common steps; one, other: means over them; ratio: other / one; low, high: the
        ratio's 95 % bootstrap interval (steps drawn with replacement, the same for both runs); noise: whether
        the interval contains 1, or there are too few steps.
    """
    both = _measured(one).join(_measured(other), on="step", suffix="_other").sort("step")
    rows = []
    for metric, column in METRICS.items():
        pairs = both.select(one=column, other=f"{column}_other").drop_nulls().rows()
        first = sum(pair[0] for pair in pairs)
        if not pairs or not first:
            continue
        second = sum(pair[1] for pair in pairs)
        low, high = _interval(pairs, Random(seed))  # noqa: S311 - repeatable, not secret
        rows.append(
            {
                "metric": metric,
                "steps": len(pairs),
                "one": first / len(pairs),
                "other": second / len(pairs),
                "ratio": second / first,
                "low": low,
                "high": high,
                "noise": len(pairs) < _FEWEST or low <= 1.0 <= high,
            }
        )
    schema = {"metric": pl.String, "steps": pl.Int64, "noise": pl.Boolean}
    floats = dict.fromkeys(("one", "other", "ratio", "low", "high"), pl.Float64)
    return pl.DataFrame(rows, schema={**schema, **floats}).select(
        "metric", "steps", "one", "other", "ratio", "low", "high", "noise"
    )


def _measured(digest: Digest) -> pl.DataFrame:
    steps = step_table(digest.filter(~pl.col("validate")))
    return steps.with_columns(
        (pl.col(f"share_{phase}") * pl.col("duration_sec")).alias(f"sec_{phase}") for phase in PHASES
    ).with_columns(tokens_per_sec=pl.col("response_tokens") / pl.col("duration_sec"))


def _interval(pairs: list[tuple[float, float]], random: Random) -> tuple[float, float]:
    """Return the bootstrap interval of the ratio of sums."""
    ratios = []
    for _ in range(_ROUNDS):
        drawn = random.choices(pairs, k=len(pairs))
        below = sum(pair[0] for pair in drawn)
        if below:
            ratios.append(sum(pair[1] for pair in drawn) / below)
    ratios.sort()
    outside = (1 - _CONFIDENCE) / 2
    if not ratios:
        return 0.0, float("inf")
    return ratios[int(outside * len(ratios))], ratios[int((1 - outside) * (len(ratios) - 1))]


def mean_interval(values: list[float], seed: int = 0) -> tuple[float, float]:
    """Return the 95 % bootstrap interval of the mean over steps."""
    random = Random(seed)  # noqa: S311 - repeatable, not secret
    means = sorted(sum(random.choices(values, k=len(values))) / len(values) for _ in range(_ROUNDS))
    outside = (1 - _CONFIDENCE) / 2
    return means[int(outside * len(means))], means[int((1 - outside) * (len(means) - 1))]
