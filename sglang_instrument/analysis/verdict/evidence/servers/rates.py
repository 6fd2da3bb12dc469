"""Fit the seconds that a token takes, and how they grow with the load."""

from typing import Final

import numpy as np

from sglang_instrument.analysis.timing.open_spans import Array

_FEWEST: Final = 5  # calls, without which nothing is fitted anew
_ROUNDS: Final = 8  # of fitting, each without what was far off


def fit_rate(tokens: Array, load: Array, sec: Array) -> tuple[float, float]:
    """Return seconds a token, and the same for each unit of load, without the calls that are far off.

    Args:
        tokens: Of each call.
        load: Of each call, such as how many others ran beside it.
        sec: What each call took.
    """
    if len(sec) == 0:
        return 0.0, 0.0
    rate = sec / tokens
    keep = np.ones(len(rate), dtype=bool)
    constant, slope = float(np.median(rate)), 0.0
    for _ in range(_ROUNDS):
        weights = np.sqrt(tokens[keep])
        columns = np.stack([np.ones(keep.sum()), load[keep]], axis=1) * weights[:, None]
        (constant, slope), *_ = np.linalg.lstsq(columns, rate[keep] * weights, rcond=None)
        if slope < 0 or constant < 0:
            constant, slope = float(np.median(rate[keep])), 0.0
        off = np.abs(np.log(rate / np.maximum(constant + slope * load, 1e-9)))
        middle = float(np.median(off[keep]))
        keep = off <= max(0.1, 3.0 * 1.4826 * middle)
        if keep.sum() < _FEWEST:
            break
    return float(constant), float(slope)
