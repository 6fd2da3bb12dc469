"""Model the duration of an engine call by its tokens and by the number of concurrent calls."""

import math
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Final, NamedTuple

import numpy as np
import polars as pl

from sglang_instrument.analysis.digests.digest import Digest
from sglang_instrument.analysis.timing.group_ids import assign_group_ids
from sglang_instrument.analysis.timing.grouped_sums import is_first, sum_before

Array = np.ndarray[Any, np.dtype[Any]]

#: A step of a worker, whose engine has a pace of its own.
OF_WORKER: Final = ("run", "step", "validate", "worker")
_REQUEST: Final = ("source", *OF_WORKER[1:], "request_id", "attempt")
_FEWEST_CALLS: Final = 20  # of fewer, only the median of the seconds a token is known
_ENOUGH_CALLS: Final = 20_000  # to fit four numbers to
_LEAST_SEC: Final = 1e-9  # that a call is expected to take
_ROUNDS: Final = 8
_EQUAL: Final = 1e-9  # a relative difference of errors that rounding makes
_OUTLIER: Final = 3.0  # a call that takes so many times as long as expected, or as short, is left out


class EngineSpeed(NamedTuple):
    """A call takes `call_sec + context_sec * context + tokens * (token_sec + crowd_sec * crowd)`.

    Attributes:
        call_sec: Seconds before the first token: queue, and prefill of the prompt.
        context_sec: Seconds of prefill for each token of the request's earlier replies.
        token_sec: Seconds a token.
        crowd_sec: Seconds a token more for each call that is in the engine, this one included.
        shared: Whether all workers call one engine, so that `crowd` counts the calls of all of them.
    """

    call_sec: float = 0.0
    context_sec: float = 0.0
    token_sec: float = 1.0
    crowd_sec: float = 0.0
    shared: bool = False

    @property
    def pool(self) -> tuple[str, ...]:
        """The columns by which calls share an engine."""
        return OF_WORKER[:-1] if self.shared else OF_WORKER

    def expected(self, crowd: Array) -> pl.Expr:
        """Return the seconds of calls with `context` and `tokens`."""
        token_sec = self.token_sec + self.crowd_sec * pl.lit(pl.Series(crowd))
        return self.call_sec + self.context_sec * pl.col("context") + token_sec * pl.col("tokens")


@dataclass(frozen=True)
class Fit:
    """The speed that explains calls best.

    Attributes:
        speed: The speed.
        calls: The calls, with `expected_sec`.
        error: Median of |log(measured / expected)|, expected at the pace of the call's step; None where no
            speed was fitted.
    """

    speed: EngineSpeed
    calls: pl.DataFrame
    error: float | None


def engine_calls(digest: Digest, run: int = 0) -> pl.DataFrame:
    """Return the engine calls whose tokens are known, one row a turn.

    Args:
        digest: Of the run.
        run: Tells the calls of several runs apart.

    Returns:
        run, source, step, validate, worker; request_id, attempt, turn; begun_us: when the worker's step
        began; tokens; context: tokens of the request's earlier replies; sec: of the call; start_sec, end_sec:
        since the worker's step began, so that differences of the hosts' clocks do not matter.
    """
    begun = digest.steps.group_by(OF_WORKER[1:]).agg(begun_us=pl.col("start_us").min())
    calls = digest.turns.filter((pl.col("engine_sec") > 0) & (pl.col("response_tokens") >= 0))
    calls = calls.sort(*_REQUEST, "turn").with_columns(first=is_first(_REQUEST))
    start = (pl.col("start_us") - pl.col("begun_us")) / 1e6
    return calls.join(begun, on=OF_WORKER[1:], maintain_order="left").select(
        pl.lit(run).alias("run"),
        "source",
        *OF_WORKER[1:],
        "request_id",
        "attempt",
        "turn",
        "begun_us",
        tokens=pl.col("response_tokens").cast(pl.Float64),
        context=sum_before(pl.col("response_tokens"), "first").cast(pl.Float64),
        sec="engine_sec",
        start_sec=start,
        end_sec=start + pl.col("engine_sec"),
    )


def fit_speed(calls: pl.DataFrame, speed: EngineSpeed | None = None, *, shared: bool | None = None) -> Fit:
    """Fit the speed to calls; each worker's step has a pace of its own.

    Whether the workers share an engine is what explains the calls better. Of fewer than 20 calls, only the
    median of the seconds a token is taken.

    Args:
        calls: As `engine_calls` returns them.
        speed: The speed, where it is known.
        shared: Whether the workers share an engine, where it is known.
    """
    calls = calls.sort(OF_WORKER)
    if speed is not None:
        return _fit(calls, speed, None)
    if not _may_be_fitted(calls):
        speed = EngineSpeed(token_sec=_median_token_sec(calls))
        return Fit(speed, calls.with_columns(expected_sec=speed.token_sec * pl.col("tokens")), None)
    some = some_steps(calls, _ENOUGH_CALLS)
    may_share = (False, True) if calls["worker"].n_unique() > 1 else (False,)
    if shared is not None:
        may_share = (shared,)
    error, speed = min((_fitted(some, way) for way in may_share), key=lambda fitted: fitted[0])
    return _fit(calls, speed, error)


def fit_error(calls: pl.DataFrame, shared: bool) -> float | None:
    """Return the error of the fit to calls of workers that share an engine, or do not: `Fit.error`."""
    calls = calls.sort(OF_WORKER)
    return _fitted(some_steps(calls, _ENOUGH_CALLS), shared)[0] if _may_be_fitted(calls) else None


def _may_be_fitted(calls: pl.DataFrame) -> bool:
    return len(calls) >= _FEWEST_CALLS and calls["tokens"].sum() > 0


def some_steps(calls: pl.DataFrame, most: int) -> pl.DataFrame:
    """Return the calls of all steps, or of every second, third ... step, so that about `most` are left."""
    step = assign_group_ids(calls, OF_WORKER[:-1])[0]
    return calls.filter(step % math.ceil(len(calls) / most) == 0)


def _fit(calls: pl.DataFrame, speed: EngineSpeed, error: float | None) -> Fit:
    expected = speed.expected(crowds(calls, speed.pool)).clip(lower_bound=_LEAST_SEC)
    return Fit(speed, calls.with_columns(expected_sec=expected), error)


def _median_token_sec(calls: pl.DataFrame) -> float:
    """Return the median of the seconds a token, over the calls that wrote any; 1 if none did."""
    wrote = calls.filter(pl.col("tokens") > 0)
    middle: Any = (wrote["sec"] / wrote["tokens"]).median()
    return 1.0 if middle is None else float(middle)


def _fitted(calls: pl.DataFrame, shared: bool) -> tuple[float, EngineSpeed]:
    """Return the error and the speed that explains calls best."""
    group = assign_group_ids(calls, OF_WORKER)[0].to_numpy()
    tokens, context, sec = (calls[name].to_numpy() for name in ("tokens", "context", "sec"))
    crowd = crowds(calls, EngineSpeed(shared=shared).pool)
    parts = np.column_stack([np.ones_like(tokens), context, tokens, tokens * crowd])
    usable, pace = np.ones(len(sec), dtype=bool), np.ones(int(group.max()) + 1)
    solved, expected = np.zeros(4), sec
    for _ in range(_ROUNDS):
        # Relative errors count; weights by the expected time, not by the measured one, keep the fit centred.
        weighed = np.column_stack([parts, sec / pace[group]]) * (usable / expected)[:, None]
        # Of this triangle the least squares are those of all calls, but found much sooner.
        triangle: Any = np.linalg.qr(weighed, mode="r")
        solved = nonnegative_least_squares(triangle[:, :-1], triangle[:, -1])
        expected = np.maximum(parts @ solved, _LEAST_SEC)
        pace = _ratio(np.bincount(group, sec * usable), np.bincount(group, expected * usable))
        usual = np.median(pace)
        pace, expected, solved = pace / usual, expected * usual, solved * usual
        usable = np.abs(np.log(sec / (expected * pace[group]))) < np.log(_OUTLIER)
    error = float(np.median(np.abs(np.log(sec / (expected * pace[group])))))
    return error, EngineSpeed(*solved.tolist())._replace(shared=shared)


def nonnegative_least_squares(parts: Array, sums: Array) -> Array:
    """Return the x >= 0 that minimises |parts @ x - sums|, by trying every choice of the columns that count.

    For four columns these are 15 small systems; `scipy.optimize.nnls` takes half a second to import. Where
    columns are multiples of each other, several choices are equally good: the fewest and first columns count.

    Args:
        parts: Rows by a few columns.
        sums: A number a row.
    """
    best, least = np.zeros(parts.shape[1]), float(sums @ sums)
    for size in range(1, parts.shape[1] + 1):
        for columns in map(list, combinations(range(parts.shape[1]), size)):
            weights = np.linalg.lstsq(parts[:, columns], sums, rcond=None)[0]
            error = float(np.sum((parts[:, columns] @ weights - sums) ** 2))
            if error < least * (1 - _EQUAL) and (weights >= 0).all():
                best, least = np.zeros(parts.shape[1]), error
                best[columns] = weights
    return best


def _ratio(sec: Array, expected: Array) -> Array:
    """Return how many times as long as expected each group took; 1 for a group without calls that count."""
    return np.where(expected > 0, sec / np.maximum(expected, 1e-9), 1.0)


def _by_pool(pools: Array, times: Array) -> Array:
    """Return the order of pools, and of times in a pool: `np.lexsort` takes twice as long.

    Equal times come in any order: nothing is waited between them.
    """
    by_time = np.argsort(times)
    few = pools.astype(np.uint16 if pools.size and pools.max() < 2**16 else np.int64)
    order: Array = by_time[np.argsort(few[by_time], kind="stable")]
    return order


def crowds(calls: pl.DataFrame, pool: tuple[str, ...]) -> Array:
    """Return for each call how many calls of its pool were in the engine meanwhile, on average."""
    number = assign_group_ids(calls, pool)[0].to_numpy()
    start, end = calls["start_sec"].to_numpy(), calls["end_sec"].to_numpy()
    pools, times = np.concatenate([number, number]), np.concatenate([start, end])
    step = np.concatenate([np.ones(len(start)), -np.ones(len(end))])
    order = _by_pool(pools, times)
    # The count is back at 0 at the end of a pool, so that the way from there to the next pool adds nothing.
    waited = np.cumsum(step[order])[:-1] * np.diff(times[order])
    until = np.empty(len(times))
    until[order] = np.concatenate([[0.0], np.cumsum(waited)])
    crowd: Array = (until[len(start) :] - until[: len(start)]) / np.maximum(end - start, 1e-9)
    return crowd
