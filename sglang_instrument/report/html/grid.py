"""Compute `what_if` in advance for every position of the report's sliders."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Any, Final

import polars as pl

from sglang_instrument.analysis.answers.steps import worker_steps
from sglang_instrument.analysis.changes.replaying.rules import Rules
from sglang_instrument.analysis.changes.whatif import ASSUMPTIONS, Model
from sglang_instrument.analysis.digests.digest import Digest

_CAPS_AT: Final = (0.5, 0.75, 0.9, 0.99)  # quantiles of the response tokens
_OVERSAMPLE: Final = (None, 0.1, 0.25, 0.5)
_MOST_TURNS: Final = 3  # positions of the slider besides "as recorded"
_MOST_ROWS: Final = 12_000  # turns: the model runs about twenty times on them

#: The most tokens, the most turns, and the share of requests beyond those that are needed.
Position = tuple[int | None, int | None, float | None]


def whatif_grid(digest: Digest, progress: Callable[[int, int], object] | None = None) -> dict[str, Any]:
    """Return the positions of the sliders, and how long a step would take at each.

    Args:
        digest: Of the run; of a large run, only the busiest workers of each step are computed.
        progress: Called with the number of positions done so far and the number of all.

    Returns:
        `max_tokens`, `max_turns`, `oversample`: the positions, None first; `steps`: numbers, in order;
        `of_steps`: how many the run has; `workers`: how many of each step, 0 for all; `recorded_sec` of each
        step; `cells`: one per position, the last slider fastest, with `predicted_sec` of each step,
        `requests`, `ended_early`, `mean_reward` and `ended_early_reward`; `assumptions`.
    """
    digest = digest.filter(~pl.col("validate")).of_workers()
    chosen, workers = _bounded(digest)
    of_steps = digest.steps["step"].n_unique()
    model = Model(chosen)
    caps, turns = _caps(chosen) if model.has_tokens else [None], _turns(chosen)
    positions: list[Position] = list(product(caps, turns, _OVERSAMPLE))
    table = model.predict_each(_rules(positions, progress))
    recorded = table.filter(pl.col("number") == 0)
    answers = {
        "steps": recorded["step"].to_list(),
        "recorded_sec": recorded["recorded_sec"].to_list(),
        "cells": _cells(table),
    }
    sliders = {"max_tokens": caps, "max_turns": turns, "oversample": list(_OVERSAMPLE)}
    counts = {"of_steps": of_steps, "workers": workers}
    return {**sliders, **answers, **counts, "assumptions": list(ASSUMPTIONS)}


def _rules(positions: Sequence[Position], progress: Callable[[int, int], object] | None) -> Iterator[Rules]:
    """Yield the rules of each position, and report the progress before each."""
    for number, (max_tokens, max_turns, oversample) in enumerate(positions):
        if progress is not None:
            progress(number, len(positions))
        yield Rules(max_tokens=max_tokens, max_turns=max_turns, oversample=oversample)


def _cells(table: pl.DataFrame) -> list[dict[str, Any]]:
    requests = pl.col("requests")
    means = table.group_by("number", maintain_order=True).agg(
        predicted_sec=pl.col("predicted_sec"),
        requests=requests.sum(),
        ended_early=pl.col("ended_early").sum(),
        mean_reward=(pl.col("mean_reward") * requests).sum()
        / requests.filter(pl.col("mean_reward").is_not_null()).sum(),
        ended_early_reward=(pl.col("ended_early_reward") * pl.col("ended_early")).sum()
        / pl.col("ended_early").filter(pl.col("ended_early_reward").is_not_null()).sum(),
    )
    return [
        {name: _finite(value) for name, value in cell.items()}
        for cell in means.drop("number").iter_rows(named=True)
    ]


def _finite(value: Any) -> Any:
    return None if value != value else value  # NaN: no request ended early, or no reward was logged


def _bounded(digest: Digest) -> tuple[Digest, int]:
    """Return as much of a run as the grid can compute, and the most workers of a step in it; 0: all.

    Each step keeps its busiest workers, because these decide how long it takes. Where one worker of each step
    is too much, steps at equal distances stay.
    """
    busy = worker_steps(digest).select("step", "worker", "busy_sec")
    turns = digest.turns.group_by("step", "worker").agg(turns=pl.len())
    workers = busy.join(turns, on=["step", "worker"], how="left").with_columns(pl.col("turns").fill_null(0))
    rank = pl.col("busy_sec").rank("ordinal", descending=True).over("step")
    workers = workers.with_columns(rank=rank).sort("rank", "step")
    most = _fitting(workers)
    if most == workers["rank"].max():
        return digest, 0
    shown = workers.filter(pl.col("rank") <= max(1, most))
    steps = shown["step"].unique().sort()
    every = max(1, math.ceil(shown["turns"].sum() / _MOST_ROWS))
    shown = shown.filter(pl.col("step").is_in(steps.gather_every(every).implode()))
    pairs = shown.select(pair=pl.struct("step", "worker"))["pair"]
    return digest.filter(pl.struct("step", "worker").is_in(pairs.implode())), max(1, most)


def _fitting(workers: pl.DataFrame) -> int:
    """Return how many workers of each step have no more turns than the grid can compute."""
    sums = workers.group_by("rank").agg(pl.col("turns").sum()).sort("rank")
    return int((sums["turns"].cum_sum() <= _MOST_ROWS).sum())


def _caps(digest: Digest) -> list[int | None]:
    """Return token caps that would cut half, a quarter ... of the responses, rounded to usual settings."""
    tokens = digest.requests["response_tokens"].drop_nulls()
    caps = {_round(tokens.quantile(share, "linear") or 0.0) for share in _CAPS_AT} - {0}
    return [None, *sorted(caps, reverse=True)]


def _round(tokens: float) -> int:
    if tokens < 2:
        return 0
    unit: int = 10 ** max(0, len(str(int(tokens))) - 2)
    return math.ceil(tokens / unit) * unit


def _turns(digest: Digest) -> list[int | None]:
    longest: Any = digest.requests["turns"].max()
    below = range(int(longest or 1) - 1, 0, -1)
    return [None, *list(below)[-_MOST_TURNS:]]
