"""Give each step of a run one value in each metric that `compare` compares."""

from typing import Final

import polars as pl

from sglang_instrument.analysis.answers.steps import step_table
from sglang_instrument.analysis.changes.replaying.queueing import fit_with_limit
from sglang_instrument.analysis.digests.digest import Digest
from sglang_instrument.analysis.ledger.engine_speed import engine_calls
from sglang_instrument.analysis.ledger.ledger import step_windows
from sglang_instrument.analysis.reading.last_open import UNENDED

#: Metrics that do not depend on which replies were drawn, and their units.
RATES: Final = {
    "engine": "s a token",
    "tool": "s a turn",
    "interaction": "s a turn",
    "reward": "s a request",
    "environment": "s a step",
    "preprocess": "s a step",
    "postprocess": "s a step",
    "broadcast": "s a step",
    "cache": "s a step",
    "weights": "s a step",
    "between_steps": "s a step",
}
#: Metrics that do.
OF_THE_DRAW: Final = {
    "duration": "s a step",
    "tokens_per_sec": "tokens/s",
    "response_tokens": "a request",
    "p50": "s a request",
    "p99": "s a request",
    "straggler_share": "share",
}
METRICS: Final = {**RATES, **OF_THE_DRAW}
_PARTS: Final = ("environment", "preprocess", "postprocess", "broadcast", "cache", "weights")
#: A step without such a part, or with less of it, counts as this. So each step has a value in it, and a
#: logarithm. A run has the part if a step of it, or of the run that it is compared with, has some.
_LEAST: Final = {**dict.fromkeys((*_PARTS, "between_steps"), 1e-3), "straggler_share": 0.01}

_OF_WHOLE_STEPS: Final = {"tokens/s": "a second", "share": "a step"}

#: By metric, then by step.
Values = dict[str, dict[int, float]]


def counted_by(metric: str) -> str:
    """Return what a metric's values are counted by: a token, a turn, a request, a step, a second."""
    unit = METRICS[metric]
    return _OF_WHOLE_STEPS.get(unit, unit.removeprefix("s "))


def step_values(run: Digest, other: Digest) -> tuple[Values, Values]:
    """Return the metrics of each training step of two runs; values that are missing are left out.

    Together, because the engine's metric compares calls of both runs at equal lengths and concurrency, and a
    part that only one run has counts as 1 ms in the other.
    """
    training = [digest.filter(~pl.col("validate")).of_workers() for digest in (run, other)]
    tables = [_of_steps(*each) for each in zip(training, (run, other), strict=True)]
    unused = [name for name in _LEAST if not any((table[name] > 0).any() for table in tables)]
    engine = engine_values(training)
    first, second = (
        {**_columns(table.drop(unused)), **_of_requests(digest), "engine": values}
        for table, digest, values in zip(tables, training, engine, strict=True)
    )
    return first, second


def engine_values(digests: list[Digest]) -> list[dict[int, float]]:
    """Return the seconds a token that each step's engine would take for the calls of all runs."""
    fit, _ = fit_with_limit(
        pl.concat([engine_calls(digest, number) for number, digest in enumerate(digests)])
    )
    tokens = float(fit.calls["tokens"].sum())
    if not tokens:
        return [{} for _ in digests]
    usual = float(fit.calls["expected_sec"].sum()) / tokens
    paces = fit.calls.group_by("run", "step").agg(pace=pl.col("sec").sum() / pl.col("expected_sec").sum())
    values = paces.with_columns(pl.col("pace") * usual).filter(pl.col("pace").is_finite())
    return [
        dict(values.filter(run=number).select("step", "pace").iter_rows()) for number, _ in enumerate(digests)
    ]


def _of_steps(digest: Digest, whole: Digest) -> pl.DataFrame:
    """Return the metrics of steps that ended; `whole` has the validations between them, too."""
    duration = pl.col("duration_sec")
    ended = step_table(digest).filter(~pl.col("unended").fill_null(value=False))
    steps = ended.join(_between(whole), on="step", how="left", maintain_order="left")
    return steps.select(
        "step",
        duration=duration,
        tokens_per_sec=pl.col("response_tokens") / duration,
        response_tokens=pl.col("response_tokens") / pl.col("requests"),
        p50="p50_sec",
        p99="p99_sec",
        straggler_share="straggler_share",
        between_steps="between_steps",
        **{part: pl.col(f"share_{part}") * duration for part in _PARTS},
    )


def _between(digest: Digest) -> pl.DataFrame:
    """Return the seconds from the end of each training step to the begin of the next, or of a validation."""
    windows = step_windows(digest).filter(~pl.col("validate") & ~pl.col("is_last"))
    return windows.select("step", between_steps=(pl.col("next_us") - pl.col("done_us")) / 1e6)


def _of_requests(digest: Digest) -> Values:
    """Return the seconds of tools, interactions and rewards, a turn or request that has some and ended."""
    turns = digest.turns.filter(~pl.col("unended").fill_null(value=False))
    requests = digest.requests.filter(pl.col("error").ne_missing(UNENDED))
    answers = turns.group_by("step").agg(_when_any("tool"), _when_any("interaction"))
    rewards = requests.group_by("step").agg(_when_any("reward"))
    return {**_columns(answers), **_columns(rewards)}


def _when_any(kind: str) -> pl.Expr:
    sec = pl.col(f"{kind}_sec")
    return sec.filter(sec > 0).mean().alias(kind)


def _columns(table: pl.DataFrame) -> Values:
    """Return the values of each column by step; one below its least counts as that, others above 0."""
    least = [pl.col(name).clip(lower_bound=sec) for name, sec in _LEAST.items() if name in table.columns]
    table = table.with_columns(least)
    return {
        name: dict(
            table.filter(pl.col(name).is_finite() & (pl.col(name) > 0)).select("step", name).iter_rows()
        )
        for name in table.columns
        if name != "step"
    }
