"""Compare two runs metric by metric, and say which differences the steps are enough to tell."""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

import polars as pl

from sglang_instrument.analysis.changes.metrics import METRICS, Values, step_values
from sglang_instrument.analysis.changes.prompts import same_prompts
from sglang_instrument.analysis.changes.statistics import MetricRatio, difference, first_is_cold, holm
from sglang_instrument.analysis.run.opening import Run

#: A difference that counts: two runs are the same in a metric if the interval lies within it, up and down.
MARGIN: Final = 1.1
#: The time of a step is what most people ask for: half of the risk of a false difference is spent on it.
MAIN_METRIC: Final = "duration"
_FEWEST_PAIRS: Final = 5  # fewer pairs with other replies tell less than two samples
_FEWEST_IN_COMMON: Final = 5  # fewer steps in common must be most of a run's

Verdict = Literal["higher", "lower", "same", "too few steps", "only in A", "only in B"]
Outcome = Literal["holds", "does not hold", "too few steps", "not measured"]


@dataclass(frozen=True)
class Condition:
    """A condition such as p99 > 1.1: the ratio of a metric, above (or below) a limit."""

    metric: str
    above: bool
    limit: float

    def __str__(self) -> str:
        return f"{self.metric} {'>' if self.above else '<'} {self.limit:g}x"


@dataclass(frozen=True)
class Comparison:
    """How a run differs from another.

    Attributes:
        steps, other_steps: The steps that are compared, of either run.
        cold, other_cold: Whether the first step of a run was left out, because it was cold.
        paired: Whether steps are compared in pairs, because their prompts were the same.
        differences: By metric.
        common: Whether only steps are compared that both runs have.
        left_out, other_left_out: How many steps of either run the other has not, where `common`.
    """

    steps: list[int]
    other_steps: list[int]
    cold: bool
    other_cold: bool
    paired: bool
    differences: dict[str, MetricRatio]
    common: bool = False
    left_out: int = 0
    other_left_out: int = 0

    @property
    def table(self) -> pl.DataFrame:
        """One row per metric that one of the runs has.

        metric; unit; steps: of the run that has fewer; a_mean, b_mean: geometric means over the steps of the
        first run and of the other; ratio: b_mean / a_mean; ratio_at_least, ratio_at_most: the interval that
        the verdict comes from, null with fewer than 2 steps; verdict; steps_needed: the steps of each run
        that would tell a difference of `MARGIN`, null for more than 10,000.
        """
        levels = holm(
            [measured.p_value() for measured in self.differences.values()], _weights(self.differences)
        )
        rows = [
            _row(metric, measured, level)
            for (metric, measured), level in zip(self.differences.items(), levels, strict=True)
        ]
        return pl.DataFrame(rows, schema=_SCHEMA, orient="row")

    def outcomes(self, conditions: Sequence[Condition]) -> list[dict[str, Any]]:
        """Return for each condition: outcome, ratio and its interval, and how many steps would tell it.

        All conditions together err in nominally 3 % of comparisons (`ALPHA`).
        """
        ratios = [
            self.differences.get(condition.metric, MetricRatio(None, None, 0)) for condition in conditions
        ]
        p_values = [measured.p_value(asked.limit) for measured, asked in zip(ratios, conditions, strict=True)]
        levels = holm(p_values, [1.0] * len(ratios))
        return [_answer(*each) for each in zip(conditions, ratios, p_values, levels, strict=True)]


_SCHEMA: Final = {
    **dict.fromkeys(("metric", "unit"), pl.String),
    "steps": pl.Int64,
    **dict.fromkeys(("a_mean", "b_mean", "ratio", "ratio_at_least", "ratio_at_most"), pl.Float64),
    "verdict": pl.String,
    "steps_needed": pl.Int64,
}


def compare_runs(run: Run, other: Run) -> Comparison:
    """Compare the training steps that both runs have; all of them if these are few of either run's."""
    values, others = step_values(run.digest, other.digest)
    steps, other_steps = sorted(values["duration"]), sorted(others["duration"])
    common = sorted({*steps} & {*other_steps})
    if len(common) < _FEWEST_IN_COMMON and 2 * len(common) <= min(len(steps), len(other_steps)):
        return comparison_of(values, others, steps, other_steps)
    enough = len(common) >= _FEWEST_PAIRS or _same_tokens(values, others, common)
    paired = enough and same_prompts(run, other, common)
    compared = comparison_of(values, others, common, common, paired)
    left_out, other_left_out = (len(each) - len(common) for each in (steps, other_steps))
    return replace(compared, common=True, left_out=left_out, other_left_out=other_left_out)


def comparison_of(
    values: Values, others: Values, steps: list[int], other_steps: list[int], paired: bool = False
) -> Comparison:
    """Compare the values of two runs' steps, as `step_values` returns them."""
    cold, other_cold = _is_cold(values, steps), _is_cold(others, other_steps)
    steps = steps[1:] if cold or (paired and other_cold) else steps
    other_steps = other_steps[1:] if other_cold or (paired and cold) else other_steps
    differences = {}
    for metric in METRICS:
        of_one = {step: values[metric][step] for step in steps if step in values.get(metric, ())}
        of_other = {step: others[metric][step] for step in other_steps if step in others.get(metric, ())}
        if paired:
            both = [step for step in of_one if step in of_other]
            of_one, of_other = ({step: each[step] for step in both} for each in (of_one, of_other))
        if of_one or of_other:
            differences[metric] = difference([*of_one.values()], [*of_other.values()], paired)
    return Comparison(steps, other_steps, cold, other_cold, paired, differences)


def _same_tokens(values: Values, others: Values, steps: list[int]) -> bool:
    """Return whether the replies were as long in each step, as in a replay: then even few pairs tell much."""
    mine, theirs = (
        [each.get("response_tokens", {}).get(step) for step in steps] for each in (values, others)
    )
    return None not in mine and mine == theirs


def _is_cold(values: Values, steps: list[int]) -> bool:
    of_metric = values.get("engine") or values[MAIN_METRIC]
    of_steps = [of_metric[step] for step in steps if step in of_metric]
    return bool(steps) and steps[0] in of_metric and first_is_cold(of_steps)


def _weights(metrics: Collection[str]) -> list[float]:
    return [max(1.0, len(metrics) - 1.0) if metric == MAIN_METRIC else 1.0 for metric in metrics]


def _row(metric: str, measured: MetricRatio, level: float) -> dict[str, Any]:
    low, high = measured.interval(level) or (None, None)
    return {
        "metric": metric,
        "unit": METRICS[metric],
        "steps": measured.steps,
        "a_mean": measured.first,
        "b_mean": measured.other,
        "ratio": measured.ratio,
        "ratio_at_least": low,
        "ratio_at_most": high,
        "verdict": _verdict(measured, level),
        "steps_needed": measured.steps_to_tell(math.log(MARGIN), level),
    }


def _verdict(measured: MetricRatio, level: float) -> Verdict:
    if measured.ratio is None:
        return "only in A" if measured.other is None else "only in B"
    if measured.p_value() <= level:
        return "higher" if measured.log > 0 else "lower"
    interval = measured.interval(level)
    if interval is not None and max(1 / interval[0], interval[1]) < MARGIN:
        return "same"
    return "too few steps"


def _answer(asked: Condition, measured: MetricRatio, p_value: float, level: float) -> dict[str, Any]:
    low, high = measured.interval(level) or (None, None)
    return {
        "condition": str(asked),
        "outcome": _outcome(asked, measured, p_value <= level),
        "ratio": measured.ratio,
        "ratio_at_least": low,
        "ratio_at_most": high,
        "steps_needed": None if measured.ratio is None else measured.steps_needed(asked.limit, level),
    }


def _outcome(asked: Condition, measured: MetricRatio, differs: bool) -> Outcome:
    if measured.ratio is None:
        return "not measured"
    if not differs:
        # Values that do not scatter are at the limit: neither above it nor below.
        return "does not hold" if measured.is_exact else "too few steps"
    return "holds" if (measured.log > math.log(asked.limit)) == asked.above else "does not hold"
