"""Tell how long prefills take for the tokens that they read, and whom reading a prompt again holds up.

The physical facts: a prefill takes the longer, the more tokens the calls of its batch read together; and
while a server reads, the calls that it runs wait. How much they do, their own times tell.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from sglang_instrument.analysis.answers.engine.requests import cached_engine_requests
from sglang_instrument.analysis.run.cached_tables import made_once
from sglang_instrument.analysis.timing.open_spans import Array, integral
from sglang_instrument.analysis.verdict.evidence.servers.rates import fit_rate

if TYPE_CHECKING:
    from collections.abc import Callable

    from sglang_instrument.analysis.run.opening import Run
    from sglang_instrument.analysis.verdict.evidence.run_evidence import Evidence

_SHORTEST_SEC: Final = 1e-6  # of a prefill, so that none has a density without bound
_FEWEST_TOKENS: Final = 8  # of a reply, for its decode to be timed
_FEWEST_TIMED: Final = 20  # calls
_ROUNDS: Final = 4  # of fitting, each without what was far off
_FAR: Final = 6.0  # times the median distance from what was fitted


def read_tokens() -> pl.Expr:
    """Return how many tokens of its prompt a server read for a call: those that its cache had not."""
    read = pl.col("prompt_tokens") - pl.col("cached_tokens").fill_null(0)
    return read.fill_null(0).clip(lower_bound=0)


def timed_calls(evidence: Evidence) -> pl.DataFrame:
    """Return the calls of which servers logged when they admitted and read them; computed once.

    Returns:
        The columns of `Evidence.served`; duration_sec, transfer_sec, retracted_sec, served_us: of the
        engine's request; tokenizer_sec: in the server, outside of its scheduler; admitted, first, end: when
        the scheduler took the call, when its prompt was read and when it ended, in seconds.
    """
    run = evidence.run
    if run is None or evidence.served.is_empty():
        return pl.DataFrame()
    return made_once(run, "timed_calls", lambda: _timed(run, evidence.served))


def waits_for_prefills(evidence: Evidence) -> float:
    """Return which share of other calls' prefills a call that decodes waits, 0 to 1; computed once."""
    calls = timed_calls(evidence)
    if evidence.run is None or calls.is_empty():
        return 0.0
    return made_once(evidence.run, "waits_for_prefills", lambda: _fitted_wait(calls))


def _timed(run: Run, calls: pl.DataFrame) -> pl.DataFrame:
    inside = cached_engine_requests(run).select(
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
        calls: As `timed_calls` returns them.
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


def _fitted_wait(calls: pl.DataFrame) -> float:
    """Return it by a fit of what a token took to the calls at once and to the prefills meanwhile."""
    parts = []
    for of_server in calls.partition_by("server", maintain_order=True):
        admitted, first, end = (of_server[name].to_numpy() for name in ("admitted", "first", "end"))
        running, reading = integral(first, end), integral(admitted, first, union=True)
        meanwhile = pl.Series(reading(end) - reading(first))
        parts.append(
            of_server.with_columns(meanwhile=meanwhile, running=pl.Series(running(end) - running(first)))
        )
    tokens, sec = pl.col("completion_tokens") - 1, pl.col("decode_sec")
    timed = pl.concat(parts).filter((tokens >= _FEWEST_TOKENS) & (sec > 0))
    if len(timed) < _FEWEST_TIMED:
        return 0.0
    of = timed.select(
        tokens.cast(pl.Float64).alias("tokens"), "decode_sec", "meanwhile", load=pl.col("running") / sec
    )
    weights = np.sqrt(of["tokens"].to_numpy())
    rate = (of["decode_sec"] / of["tokens"]).to_numpy()
    columns = np.stack(
        [np.ones(len(of)), of["load"].to_numpy(), (of["meanwhile"] / of["tokens"]).to_numpy()], axis=1
    )
    keep = np.ones(len(of), dtype=bool)
    for _ in range(_ROUNDS):
        fitted, *_ = np.linalg.lstsq(
            columns[keep] * weights[keep, None], rate[keep] * weights[keep], rcond=None
        )
        off = np.abs(rate - columns @ fitted)
        keep = off <= _FAR * float(np.median(off))
    return float(np.clip(fitted[2], 0.0, 1.0))


def held_by_reading(calls: pl.DataFrame, waits: float) -> pl.DataFrame:
    """Return the calls that waited while a server read what its cache should have had: `excess_sec`.

    Args:
        calls: As `timed_calls` returns them, with `missing_tokens`: those that a call read again, 0 if none.
        waits: As `waits_for_prefills` returns it.
    """
    rows = []
    for of_server in calls.partition_by("server", maintain_order=True):
        again = _share_read_again(of_server)
        begin, first, end = (again(of_server[name].to_numpy()) for name in ("admitted", "first", "end"))
        rows.append(of_server.with_columns(excess_sec=pl.Series(first - begin + waits * (end - first))))
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
