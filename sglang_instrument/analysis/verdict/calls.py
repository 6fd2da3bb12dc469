"""List the calls of a run with what each usually takes: engine calls, tools, interactions, rewards.

What is usual for an engine call depends on its tokens and on how many calls ran beside it: an engine that
decodes many replies at once needs longer for each token. So the run's own calls are fitted with
`seconds = a + tokens x (b + c x calls beside it)`. For the other kinds the median is usual.
"""

from typing import Any, Final

import numpy as np
import polars as pl

from sglang_instrument.analysis.run.digest import Digest
from sglang_instrument.analysis.timing.group_ids import assign_group_ids

OF_WORKER: Final = ["step", "validate", "worker"]
KINDS: Final = ("engine", "tool", "interaction", "reward")
_FEWEST: Final = 12  # with fewer engine calls, seconds a token stand for all
_ROUNDS: Final = 12
_FAR: Final = 1.5  # robust standard deviations beyond which a call weighs less in the fit
_MAD: Final = 1.4826
_CHOICES: Final = ([1], [0, 1], [2], [1, 2], [0, 2], [0, 1, 2])  # of the columns of the fit
_CALL: Final[dict[str, Any]] = {
    "kind": pl.String,
    "step": pl.Int64,
    "validate": pl.Boolean,
    "worker": pl.Int64,
    "request_id": pl.String,
    "turn": pl.Int64,
    "start_us": pl.Int64,
    "end_us": pl.Int64,
    "sec": pl.Float64,
    "tokens": pl.Int64,
    "beside": pl.Float64,
    "usual_sec": pl.Float64,
}


def calls_of(digest: Digest) -> pl.DataFrame:
    """Return one row per call within the requests of workers.

    Returns:
        kind: one of `KINDS`; step, validate, worker, request_id; turn: null for interactions
        and rewards, which are summed up by request; start_us, end_us; sec;
        tokens: of engine calls; beside: how many engine calls of the worker ran during an engine call, on
        average, itself included; usual_sec: what such a call usually takes in this run.
    """
    digest = digest.of_workers()
    # A turn begins with its engine call, and ends with its tools or its interaction.
    engine = pl.col("start_us") + (pl.col("engine_sec") * 1e6).cast(pl.Int64)
    tables = [
        _kind(digest.turns, "engine", "start_us", engine, pl.col("response_tokens")),
        _kind(digest.turns, "tool", _before("end_us", "tool_sec"), "end_us"),
        _kind(_of_requests(digest), "interaction", _before("end_us", "interaction_sec"), "end_us"),
        _kind(_of_requests(digest), "reward", _before("end_us", "reward_sec"), "end_us"),
    ]
    tables[0] = _with_usual_engine(tables[0])
    for number in range(1, len(tables)):
        tables[number] = tables[number].with_columns(usual_sec=pl.col("sec").median())
    return pl.concat(
        [
            pl.DataFrame(schema=_CALL),
            *(table.select(pl.col(name).cast(kind) for name, kind in _CALL.items()) for table in tables),
        ]
    )


def _of_requests(digest: Digest) -> pl.DataFrame:
    """Return the requests: trainers log rewards and interactions under turns without an engine call."""
    return digest.requests.with_columns(turn=pl.lit(None, pl.Int64))


def _before(end: str, duration: str) -> pl.Expr:
    return pl.col(end) - (pl.col(duration) * 1e6).cast(pl.Int64)


def _kind(
    rows: pl.DataFrame, kind: str, start: str | pl.Expr, end: str | pl.Expr, tokens: pl.Expr | None = None
) -> pl.DataFrame:
    spent = pl.col(f"{kind}_sec")
    return rows.filter(spent > 0).select(
        *OF_WORKER,
        *("request_id", "turn"),
        kind=pl.lit(kind),
        start_us=pl.col(start) if isinstance(start, str) else start,
        end_us=pl.col(end) if isinstance(end, str) else end,
        sec=spent,
        tokens=pl.lit(None, pl.Int64) if tokens is None else tokens,
        beside=pl.lit(None, pl.Float64),
        usual_sec=pl.lit(None, pl.Float64),
    )


def _with_usual_engine(calls: pl.DataFrame) -> pl.DataFrame:
    calls = calls.with_columns(beside=_beside(calls))
    known = calls.filter(pl.col("tokens") > 0)
    if len(known) < _FEWEST:
        per_token: Any = (known["sec"] / known["tokens"]).median() if len(known) else None
        by_tokens = pl.col("tokens") * pl.lit(per_token, pl.Float64)
        return calls.with_columns(usual_sec=pl.coalesce(by_tokens, pl.col("sec").median()))
    tokens, beside = known["tokens"].to_numpy(), known["beside"].to_numpy()
    factors = _fit(known["sec"].to_numpy(), tokens, beside)
    a, b, c = (float(factor) for factor in factors)
    usual = a + pl.col("tokens") * (b + c * pl.col("beside"))
    return calls.with_columns(usual_sec=pl.when(pl.col("tokens") > 0).then(usual))


def _fit(sec: Any, tokens: Any, beside: Any) -> Any:
    """Fit `a + tokens x (b + c x beside)` by relative least squares in which outliers weigh less."""
    columns = np.stack([np.ones(len(sec)), tokens, tokens * beside], axis=1)
    weight = 1.0 / np.maximum(sec, 1e-6)
    factors = np.array([0.0, np.median(sec / tokens), 0.0])
    for _ in range(_ROUNDS):
        fitted = _non_negative(columns * weight[:, None], sec * weight)
        off = np.log(np.maximum(sec, 1e-9)) - np.log(np.maximum(columns @ fitted, 1e-9))
        off -= np.median(off)
        spread = max(float(np.median(np.abs(off))) * _MAD, 1e-3)
        trust = np.minimum(1.0, _FAR * spread / np.maximum(np.abs(off), 1e-12))
        weight = np.sqrt(trust) / np.maximum(columns @ fitted, 1e-6)
        if np.allclose(fitted, factors, rtol=1e-4):
            break
        factors = fitted
    middle = float(np.exp(np.median(np.log(sec) - np.log(np.maximum(columns @ factors, 1e-9)))))
    return factors * middle


def _non_negative(columns: Any, wanted: Any) -> Any:
    """Return the least-squares factors, none of which is negative: the best of all choices of columns."""
    best, least = np.zeros(columns.shape[1]), np.inf
    for chosen in _CHOICES:
        found = np.zeros(columns.shape[1])
        found[chosen] = np.linalg.lstsq(columns[:, chosen], wanted, rcond=None)[0]
        rest = float(np.sum((columns @ found - wanted) ** 2))
        if rest < least and (found >= 0).all():
            best, least = found, rest
    return best


def _beside(calls: pl.DataFrame) -> pl.Series:
    """Return the mean number of calls of the same worker and step that ran during each call."""
    if calls.is_empty():
        return pl.Series([], dtype=pl.Float64)
    group, _ = assign_group_ids(calls, OF_WORKER)
    lowest, highest = calls["start_us"].min(), calls["end_us"].max()
    shift = group * (highest - lowest + 1) - lowest  # type: ignore[operator]
    starts, ends = (calls["start_us"] + shift).to_numpy(), (calls["end_us"] + shift).to_numpy()
    times = np.concatenate([starts, ends])
    order = np.argsort(times, kind="stable")
    running = np.cumsum(np.where(order < len(starts), 1, -1))
    passed = np.diff(times[order], prepend=times[order[0]])
    areas = np.empty(len(times))
    areas[order] = np.cumsum(np.concatenate([[0], running[:-1]]) * passed)
    lasted = np.maximum(ends - starts, 1)
    return pl.Series((areas[len(starts) :] - areas[: len(starts)]) / lasted).clip(lower_bound=1.0)
