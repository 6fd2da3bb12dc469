"""Tell how long prefills take for the tokens that they read, and whom reading a prompt again holds up.

The physical facts: a prefill takes the longer, the more tokens the calls of its batch read together; and while
a server reads, the calls that it runs wait.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from sglang_instrument.analysis.answers.engine.requests import cached_engine_requests
from sglang_instrument.analysis.timing.open_spans import Array
from sglang_instrument.analysis.verdict.evidence.servers.rates import fit_rate

if TYPE_CHECKING:
    from collections.abc import Callable

    from sglang_instrument.analysis.verdict.evidence.run_evidence import Evidence

_SHORTEST_SEC: Final = 1e-6  # of a prefill, so that none has a density without bound


def read_tokens() -> pl.Expr:
    """Return how many tokens of its prompt a server read for a call: those that its cache had not."""
    return (pl.col("prompt_tokens") - pl.col("cached_tokens").fill_null(0)).clip(lower_bound=0)


def with_times(evidence: Evidence, calls: pl.DataFrame) -> pl.DataFrame:
    """Add when the scheduler admitted each call, when its prompt was read and when it ended, in seconds.

    Args:
        evidence: The evidence.
        calls: Rows of `Evidence.served`.

    Returns:
        The calls of which all of it is known; and duration_sec, transfer_sec, retracted_sec, served_us: of
        the engine's request; tokenizer_sec: in the server, outside of its scheduler; admitted, first, end.
    """
    if evidence.run is None or calls.is_empty():
        return pl.DataFrame()
    inside = cached_engine_requests(evidence.run).select(
        "rid", "duration_sec", "transfer_sec", "retracted_sec", served_us="start_us"
    )
    calls = calls.drop("transfer_sec", strict=False).join(inside, on="rid", maintain_order="left")
    calls = calls.drop_nulls(["server", "queue_sec", "prefill_sec", "decode_sec", "duration_sec", "call_sec"])
    spent = pl.sum_horizontal(
        *("queue_sec", "prefill_sec", "decode_sec"),
        *(pl.col(name).fill_null(0.0) for name in ("transfer_sec", "retracted_sec")),
    )
    calls = calls.with_columns(tokenizer_sec=(pl.col("duration_sec") - spent).clip(lower_bound=0.0))
    admitted = pl.col("served_us") / 1e6 + pl.col("tokenizer_sec") + pl.col("queue_sec")
    calls = calls.with_columns(admitted=admitted)
    calls = calls.with_columns(first=pl.col("admitted") + pl.col("prefill_sec"))
    return calls.with_columns(end=pl.col("first") + pl.col("decode_sec"))


def with_usual_prefill(calls: pl.DataFrame) -> pl.DataFrame:
    """Add `prefill_usual_sec`: what reading as many tokens takes, by a fit to all calls of the run.

    Args:
        calls: With what `with_times` adds.
    """
    parts = [
        part.with_columns(batch_tokens=pl.Series(_read_meanwhile(part)))
        for part in calls.partition_by("server", maintain_order=True)
    ]
    calls = pl.concat(parts)
    timed = calls.filter((pl.col("batch_tokens") >= 1.0) & (pl.col("prefill_sec") > 0))
    tokens, sec = timed["batch_tokens"].to_numpy(), timed["prefill_sec"].to_numpy()
    a_token, a_batch = fit_rate(tokens, 1.0 / tokens, sec)
    return calls.with_columns(prefill_usual_sec=a_batch + a_token * pl.col("batch_tokens"))


def held_by_reading(calls: pl.DataFrame) -> pl.DataFrame:
    """Return the calls that waited while their server read what its cache should have had, with `excess_sec`.

    Args:
        calls: With what `with_times` adds, and `missing_tokens`: those that a call read again, 0 if none.
    """
    rows = []
    for of_server in calls.partition_by("server", maintain_order=True):
        again = _share_read_again(of_server)
        begin, end = of_server["admitted"].to_numpy(), of_server["end"].to_numpy()
        rows.append(of_server.with_columns(excess_sec=pl.Series(again(end) - again(begin))))
    return pl.concat(rows).filter(pl.col("excess_sec") > 0) if rows else calls


def _read_meanwhile(calls: pl.DataFrame) -> Array:
    """Return how many tokens a server read during each call's prefill, for all calls of its batches."""
    begin, end, density = _densities(calls, calls.select(read_tokens()).to_series().to_numpy())
    read = _summed(begin, end, density)
    batch: Array = read(end) - read(begin)
    return batch


def _share_read_again(calls: pl.DataFrame) -> Callable[[Array], Array]:
    """Return the integral over time of the share of what a server reads that it reads again."""
    missing = calls["missing_tokens"].to_numpy()
    read = np.maximum(missing, calls.select(read_tokens()).to_series().to_numpy())
    begin, end, again = _densities(calls, missing)
    _, _, all_of_it = _densities(calls, read)
    times, again_at = _steps(begin, end, again)
    _, all_at = _steps(begin, end, all_of_it)
    share = np.where(all_at > 1e-9, np.clip(again_at / np.maximum(all_at, 1e-9), 0.0, 1.0), 0.0)
    total = np.concatenate([[0.0], np.cumsum(share[:-1] * np.diff(times))])
    return lambda moments: np.interp(moments, times, total)


def _densities(calls: pl.DataFrame, tokens: Array) -> tuple[Array, Array, Array]:
    """Return when calls were read, and the tokens a second of each, as if it were read evenly."""
    begin = calls["admitted"].to_numpy()
    end = np.maximum(calls["first"].to_numpy(), begin + _SHORTEST_SEC)
    return begin, end, tokens / (end - begin)


def _steps(begin: Array, end: Array, density: Array) -> tuple[Array, Array]:
    """Return the times at which a sum of densities changes, and what it is from each of them on."""
    times = np.concatenate([begin, end])
    order = np.argsort(times, kind="stable")
    return times[order], np.cumsum(np.concatenate([density, -density])[order])


def _summed(begin: Array, end: Array, density: Array) -> Callable[[Array], Array]:
    """Return the integral over time of a sum of densities."""
    times, rate = _steps(begin, end, density)
    total = np.concatenate([[0.0], np.cumsum(rate[:-1] * np.diff(times))])
    return lambda moments: np.interp(moments, times, total)
