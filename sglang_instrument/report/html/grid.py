"""Compute `what_if` in advance for every position of the report's sliders."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import product
from typing import Any, Final

import polars as pl

from sglang_instrument.analysis.changes.rules import Rules
from sglang_instrument.analysis.changes.whatif import ASSUMPTIONS, Model
from sglang_instrument.analysis.run.digest import Digest

_CAPS_AT: Final = (0.5, 0.75, 0.9, 0.99)  # quantiles of the response tokens
_OVERSAMPLE: Final = (None, 0.1, 0.25, 0.5)
_MOST_TURNS: Final = 3  # positions of the slider besides "as recorded"
_MOST_ROWS: Final = 12_000  # turns: the model runs about twenty times on them


def whatif_grid(digest: Digest, progress: Callable[[int, int], object] | None = None) -> dict[str, Any]:
    """Return the positions of the sliders, and how long a step would take at each.

    Args:
        digest: Of the run; of a large run, only the slowest steps are computed.
        progress: Called with the number of positions done so far and the number of all.

    Returns:
        `max_tokens`, `max_turns`, `oversample`: the positions, None first; `steps`: numbers, in order;
        `of_steps`: how many the run has; `recorded_sec` of each; `cells`: one per position, the last slider
        fastest, with `predicted_sec` of each step, `requests`, `cut`, `reward_all` and `reward_cut`;
        `assumptions`.
    """
    digest = digest.filter(~pl.col("validate")).of_workers()
    chosen, of_steps = _bounded(digest)
    caps, turns = _caps(chosen), _turns(chosen)
    positions = list(product(caps, turns, _OVERSAMPLE))
    model = Model(chosen)
    answers: dict[str, Any] = {"steps": [], "recorded_sec": [], "cells": []}
    for number, (max_tokens, max_turns, oversample) in enumerate(positions):
        if progress is not None:
            progress(number, len(positions))
        table = model.predict(Rules(max_tokens=max_tokens, max_turns=max_turns, oversample=oversample))
        answers["steps"], answers["recorded_sec"] = table["step"].to_list(), table["recorded_sec"].to_list()
        answers["cells"].append(_cell(table))
    sliders = {"max_tokens": caps, "max_turns": turns, "oversample": list(_OVERSAMPLE)}
    return {**sliders, **answers, "of_steps": of_steps, "assumptions": list(ASSUMPTIONS)}


def _cell(table: pl.DataFrame) -> dict[str, Any]:
    requests = pl.col("requests")
    means = table.select(
        requests=requests.sum(),
        cut=pl.col("cut").sum(),
        reward_all=(pl.col("reward_all") * requests).sum()
        / requests.filter(pl.col("reward_all").is_not_null()).sum(),
        reward_cut=(pl.col("reward_cut") * pl.col("cut")).sum()
        / pl.col("cut").filter(pl.col("reward_cut").is_not_null()).sum(),
    ).row(0, named=True)
    return {
        "predicted_sec": table["predicted_sec"].to_list(),
        **{name: _finite(value) for name, value in means.items()},
    }


def _finite(value: Any) -> Any:
    return None if value != value else value  # NaN: nothing was cut, or no reward was logged


def _bounded(digest: Digest) -> tuple[Digest, int]:
    """Return the slowest steps of a run, as many as the grid can compute, and the number of all steps."""
    steps = digest.steps.group_by("step").agg(pl.col("duration_sec").max())
    turns = digest.turns.group_by("step").agg(turns=pl.len())
    ordered = steps.join(turns, on="step", how="left").sort("duration_sec", descending=True)
    running = pl.col("turns").fill_null(0).cum_sum()
    kept = ordered.filter((running <= _MOST_ROWS) | (pl.int_range(pl.len()) == 0))["step"]
    if len(kept) == len(ordered):
        return digest, len(ordered)
    return digest.filter(pl.col("step").is_in(kept.implode())), len(ordered)


def _caps(digest: Digest) -> list[int | None]:
    """Return token caps that would cut half, a quarter ... of the responses, rounded to usual settings."""
    tokens = digest.requests["response_tokens"].drop_nulls()
    found = {_round(tokens.quantile(share, "linear") or 0.0) for share in _CAPS_AT} - {0}
    return [None, *sorted(found, reverse=True)]


def _round(tokens: float) -> int:
    if tokens < 2:
        return 0
    unit: int = 10 ** max(0, len(str(int(tokens))) - 2)
    return math.ceil(tokens / unit) * unit


def _turns(digest: Digest) -> list[int | None]:
    longest: Any = digest.requests["turns"].max()
    below = range(int(longest or 1) - 1, 0, -1)
    return [None, *list(below)[-_MOST_TURNS:]]
