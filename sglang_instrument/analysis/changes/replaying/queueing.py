"""Find out how many calls an engine runs at once, where more of them are made than that.

An engine with such a limit admits calls in the order in which they come. A log tells when a call was made and
when it ended, not when it was admitted; but the ends of the earlier calls and the limit tell that.
"""

import heapq
import math
from collections.abc import Sequence
from typing import Final

import polars as pl

from sglang_instrument.analysis.ledger.engine_speed import EngineSpeed, Fit, fit_error, fit_speed, some_steps
from sglang_instrument.analysis.timing.group_ids import assign_group_ids

_LEAST_LIMIT: Final = 2
_NARROWER: Final = 0.7  # from one limit that is tried to the next
_BETTER: Final = 0.75  # a limit must explain the calls so much better than none
_WORST_FIT: Final = 0.02  # calls that are this near to the fit need no limit
_MOST_IMPOSSIBLE: Final = 0.05  # of the calls, that would end before they are admitted: some overtake others
_MOST_OVERTAKING: Final = 0.5  # the same, where the limit is known: calls made at once arrive in any order
_MOST_CALLS: Final = 5_000  # that limits are tried on


def admissions(starts: Sequence[float], ends: Sequence[float], limit: int | None) -> list[float]:
    """Return when an engine that runs at most `limit` calls admitted each call: at its end at the latest."""
    if limit is None:
        return list(starts)
    running: list[float] = []
    admitted = list(starts)
    for number in sorted(range(len(starts)), key=starts.__getitem__):
        now = starts[number]
        while running and running[0] <= now:
            heapq.heappop(running)
        if len(running) >= limit:
            now = heapq.heappop(running)
        admitted[number] = min(now, ends[number])
        heapq.heappush(running, ends[number])
    return admitted


def fit_with_limit(calls: pl.DataFrame) -> tuple[Fit, int | None]:
    """Fit the speed to calls, and how many of them an engine runs at once; None if all.

    Args:
        calls: Of `engine_calls`. Those of the fit begin when they were admitted.
    """
    fit = fit_speed(calls)
    if fit.error is None or fit.error < _WORST_FIT:
        return fit, None
    sample = some_steps(calls, _MOST_CALLS)
    plain = fit if len(sample) == len(calls) else fit_speed(sample)
    ways = (False, True)[: min(2, calls["worker"].n_unique())]
    error, shared, limit = min(_best_limit(sample, shared) for shared in ways)
    with_limit = _fit_at(calls, shared, limit) if error < _BETTER * (plain.error or 0.0) else None
    return (fit, None) if with_limit is None else (with_limit, limit)


def fit_at_limits(calls: pl.DataFrame, limit: int, shared_limit: int) -> tuple[Fit, int | None]:
    """Fit the speed to calls of engines of which it is known how many calls they run at once.

    Where calls would end before they were admitted, no engine had that limit: the fit is then without one.

    Args:
        calls: As for `fit_with_limit`.
        limit: Of an engine of each worker.
        shared_limit: Of the engine that all workers share, if they do.
    """
    ways = ((False, limit), (True, shared_limit))[: min(2, calls["worker"].n_unique())]
    fits = [(forced, most) for shared, most in ways if (forced := _forced(calls, shared, most)) is not None]
    known = [(known_fit.error, most, known_fit) for known_fit, most in fits if known_fit.error is not None]
    if not known:
        return fit_speed(calls), None
    _, most, fit = min(known, key=lambda known_fit: known_fit[0])
    return fit, most


def _best_limit(calls: pl.DataFrame, shared: bool) -> tuple[float, bool, int]:
    """Return the limit that explains calls best, after its error: the best of some, or near it."""
    tried: dict[int, float] = {}

    def error(limit: int) -> float:
        if limit not in tried:
            least = min(tried.values(), default=math.inf)
            tried[limit] = _error_at(calls, shared, limit, least) if limit >= _LEAST_LIMIT else math.inf
        return tried[limit]

    limits = [_most_at_once(calls, shared) - 1]
    while limits[-1] > _LEAST_LIMIT:
        limits.append(min(limits[-1] - 1, round(limits[-1] * _NARROWER)))
    best = min(limits, key=error)
    step = max(1, round(best * (1 - _NARROWER) / 2))
    while step:
        near = min((best, best - step, best + step), key=error)
        best, step = near, step if near != best else step // 2
    return error(best), shared, best


def _error_at(calls: pl.DataFrame, shared: bool, limit: int, least: float) -> float:
    """Return the error of `_fit_at`; infinity where that is None, or where the error is not below `least`."""
    running = _running(calls, shared, limit)
    error = None if running is None else fit_error(running, shared)
    if running is None or error is None or error >= least:
        return math.inf
    other = fit_error(running, not shared) if calls["worker"].n_unique() > 1 else math.inf
    return error if other is None or error < other or (error == other and not shared) else math.inf


def _fit_at(calls: pl.DataFrame, shared: bool, limit: int) -> Fit | None:
    """Return the fit to calls that begin when they are admitted; None where that cannot be."""
    running = _running(calls, shared, limit)
    fit = None if running is None else fit_speed(running)
    return fit if fit is not None and fit.speed.shared == shared else None


def _forced(calls: pl.DataFrame, shared: bool, limit: int) -> Fit | None:
    """Return the same as `_fit_at` for a limit that is known, though many calls overtake others."""
    running = _running(calls, shared, limit, _MOST_OVERTAKING)
    return None if running is None else fit_speed(running, shared=shared)


def _running(
    calls: pl.DataFrame, shared: bool, limit: int, most: float = _MOST_IMPOSSIBLE
) -> pl.DataFrame | None:
    """Return calls that begin when they are admitted; None where too many would end before that."""
    admitted = _admitted(calls, shared, limit)
    ended = pl.col("end_sec") - admitted
    running = calls.with_columns(start_sec=admitted, sec=ended).filter(pl.col("sec") > 0)
    return None if len(running) < (1 - most) * len(calls) else running


def _admitted(calls: pl.DataFrame, shared: bool, limit: int) -> pl.Series:
    admitted = [0.0] * len(calls)
    starts, ends = (calls[name].to_list() for name in ("start_sec", "end_sec"))
    for members in _pools(calls, shared):
        begins = admissions([starts[call] for call in members], [ends[call] for call in members], limit)
        for call, begin in zip(members, begins, strict=True):
            admitted[call] = begin
    return pl.Series(admitted, dtype=pl.Float64)


def _pools(calls: pl.DataFrame, shared: bool) -> list[list[int]]:
    numbered = calls.select(EngineSpeed(shared=shared).pool).with_row_index("number")
    return numbered.group_by(pl.exclude("number"), maintain_order=True).agg("number")["number"].to_list()


def _most_at_once(calls: pl.DataFrame, shared: bool) -> int:
    pool = assign_group_ids(calls, EngineSpeed(shared=shared).pool)[0].alias("pool")
    begun = pl.DataFrame({"pool": pool, "at": calls["start_sec"], "change": 1})
    ended = pl.DataFrame({"pool": pool, "at": calls["end_sec"], "change": -1})
    changes = pl.concat([begun, ended], how="vertical_relaxed").sort("pool", "at", "change")
    most: int = changes.select(pl.col("change").cum_sum().max()).item()  # it is 0 at the end of each pool
    return most
