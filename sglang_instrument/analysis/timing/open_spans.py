"""Add up over time how many spans are open, or whether any is."""

from typing import Any

import numpy as np

Array = np.ndarray[Any, np.dtype[Any]]


def integral(begin: Array, end: Array, union: bool = False) -> Any:
    """Return the function of time that adds up how many spans are open; with `union`, whether any is."""
    times = np.concatenate([begin, end])
    change = np.concatenate([np.ones(len(begin)), -np.ones(len(end))])
    order = np.argsort(times, kind="stable")
    times, count = times[order], np.cumsum(change[order])
    if union:
        count = (count > 0.5).astype(float)
    total = np.concatenate([[0.0], np.cumsum(count[:-1] * np.diff(times))])
    return lambda moments: np.interp(moments, times, total)
